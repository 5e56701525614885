"""`flexmarl export RUN POLICY OUT`: a policy's model as Hugging Face files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexmarl.cli.commands.arguments import (
    ClaimOption,
    ContextOption,
    ImageOption,
    NamespaceOption,
)
from flexmarl.cli.console import CommandError, say

if TYPE_CHECKING:
    from flexmarl.cli.reading import Where

MANIFESTS = "step-*/manifest.json"
"""Of checkpoints; written last: one is whole once it is there."""


def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run below runs/, or its folder. A MARLJob's name where there is no such run, "
            "or with --namespace or --context; also of one that was deleted.",
        ),
    ],
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Whose weights.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is made.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="After how many steps; the newest checkpoint's.")
    ] = None,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    image: ImageOption = None,
    claim: ClaimOption = None,
) -> None:
    """Copy a policy's model and tokenizer out of a checkpoint.

    AutoModelForCausalLM.from_pretrained(OUT) loads it. Of a MARLJob the checkpoint is read from its
    claim, which may have outlived it.
    """
    from flexmarl.cli.commands.target import local_run
    from flexmarl.trainer.export import export

    root = local_run(run, namespace, context, claim)
    if root is None:
        from flexmarl.cli.connection import ask
        from flexmarl.cli.reading import Where

        where = Where(namespace, context, image, claim)
        chosen, count = ask(_from_cluster(run, policy, out, step, where))
    else:
        steps = checkpoints(root)
        chosen = _chosen(run, steps, step)
        count = len(export(steps[chosen], policy, out))
    say(f"{out}: {policy} after {chosen} steps, {count} files")


async def _from_cluster(
    run: str, policy: str, out: Path, step: int | None, where: Where
) -> tuple[int, int]:
    """The step and the number of files."""
    import tempfile

    from flexmarl.cli.reading import reading
    from flexmarl.trainer.export import OPTIMIZER, check_empty, export

    check_empty(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        async with reading(run, where) as (reader, _):
            root = await reader.copy(Path(scratch), f"checkpoints/{MANIFESTS}")
            steps = found_in(root / "checkpoints")
            chosen = _chosen(run, steps, step)
            folder = steps[chosen].relative_to(root)
            wanted = [f"{folder}/*/state.json", f"{folder}/{policy}/*"]
            await reader.copy(Path(scratch), *wanted, without=OPTIMIZER)
        return chosen, len(export(steps[chosen], policy, out))


def _chosen(run: str, steps: Mapping[int, Path], step: int | None) -> int:
    if not steps:
        raise CommandError(f"{run} has no complete checkpoint yet")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        have = ", ".join(map(str, sorted(steps)))
        raise CommandError(f"{run} has no checkpoint of step {step}; it has {have}")
    return chosen


def checkpoints(root: Path) -> dict[int, Path]:
    """Finished steps -> folder of every complete checkpoint of the run in `root`."""
    from flexmarl.contracts.reading import read_job

    file = read_job(root / "job.yaml")
    uri = file.job.spec.checkpoint.uri
    return found_in(
        root / "checkpoints" if uri is None else file.base_dir / uri.removeprefix("file://")
    )


def found_in(place: Path) -> dict[int, Path]:
    found = {}
    for manifest in place.glob(MANIFESTS):
        try:
            found[int(json.loads(manifest.read_text())["step"])] = manifest.parent
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"{manifest} is damaged") from None
    return found
