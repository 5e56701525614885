"""`flexmarl export RUN POLICY OUT`: a policy's model as Hugging Face files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flexmarl.cli.console import CommandError, say


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run below runs/, or its folder.")],
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Whose weights.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is made.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="After how many steps; the newest checkpoint's.")
    ] = None,
) -> None:
    """Copy a policy's model and tokenizer out of a checkpoint.

    AutoModelForCausalLM.from_pretrained(OUT) loads it.
    """
    from flexmarl.cli.find import find_run
    from flexmarl.trainer.export import export

    steps = checkpoints(find_run(run))
    if not steps:
        raise CommandError(f"{run} has no complete checkpoint yet")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        have = ", ".join(map(str, sorted(steps)))
        raise CommandError(f"{run} has no checkpoint of step {step}; it has {have}")
    names = export(steps[chosen], policy, out)
    say(f"{out}: {policy} after {chosen} steps, {len(names)} files")


def checkpoints(root: Path) -> dict[int, Path]:
    """Finished steps -> folder of every complete checkpoint of the run in `root`."""
    from flexmarl.contracts.reading import read_job

    file = read_job(root / "job.yaml")
    uri = file.job.spec.checkpoint.uri
    place = root / "checkpoints" if uri is None else file.base_dir / uri.removeprefix("file://")
    found = {}
    for manifest in place.glob("step-*/manifest.json"):  # written last: whole once it is there
        try:
            found[int(json.loads(manifest.read_text())["step"])] = manifest.parent
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"{manifest} is damaged") from None
    return found
