"""`flexmarl bench`: the services measured against plain code in the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flexmarl.cli.console import INTERRUPTED, leave

if TYPE_CHECKING:
    from flexmarl.bench.measure import Measure

app = typer.Typer(
    help="Measure the services against plain code in the same run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Size(StrEnum):
    ONE_MILLION = "1m"
    SMOLLM2 = "smollm2"


JsonOption = Annotated[bool, typer.Option("--json", help="The machine-readable form.")]
SizeOption = Annotated[Size, typer.Option(help="The model: 1M random parameters, or SmolLM2-135M.")]


@app.command()
def rollout(size: SizeOption = Size.ONE_MILLION, *, json: JsonOption = False) -> None:
    """Sampled tokens per second, against a plain KV-cache loop."""
    from flexmarl.bench import rollout as bench

    _show("rollout", bench.run(bench.CASES[size]), as_json=json)


@app.command()
def train(size: SizeOption = Size.ONE_MILLION, *, json: JsonOption = False) -> None:
    """Trained tokens per second, against a plain loop."""
    from flexmarl.bench import train as bench

    _show("train", bench.run(bench.CASES[size]), as_json=json)


@app.command()
def pipeline(
    rounds: Annotated[int, typer.Option(min=1, max=20)] = 2, *, json: JsonOption = False
) -> None:
    """Steps per second with and without overlap; some minutes."""
    from flexmarl.bench import pipeline as bench

    _show("pipeline", bench.run(rounds), as_json=json)


@app.command()
def scale(*, json: JsonOption = False) -> None:
    """What 64 engines, 8 policies and 2,000 episodes cost."""
    from flexmarl.bench import scale as bench

    _show("scale", bench.run(), as_json=json)


@app.command()
def store(*, json: JsonOption = False) -> None:
    """Groups per second through the experience service; some minutes."""
    from flexmarl.bench import store as bench

    _show("store", bench.run(lambda text: typer.echo(text, err=True)), as_json=json)


@app.command()
def operator(
    jobs: Annotated[int, typer.Option(min=1, max=2000, help="Created at once.")] = 200,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Served by a release: how soon pods are there."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Jobs with --namespace.")] = 5,
    *,
    json: JsonOption = False,
) -> None:
    """What many jobs cost the controller, on KUBECONFIG's cluster."""
    from flexmarl.bench import operator as bench

    said = bench.run(jobs, rounds, namespace, lambda text: typer.echo(text, err=True))
    _show("operator", said, as_json=json)


@app.command()
def start(
    job: Annotated[Path, typer.Argument(metavar="JOB", exists=True, dir_okay=False)],
    rounds: Annotated[int, typer.Option(min=1, max=20)] = 3,
    *,
    json: JsonOption = False,
) -> None:
    """Seconds from `flexmarl run JOB` to its first trained step."""
    from flexmarl.bench import start as bench

    _show("start", bench.run(job, rounds), as_json=json)


def _show(name: str, measuring: Coroutine[Any, Any, list[Measure]], *, as_json: bool) -> None:
    from flexmarl.bench import measure
    from flexmarl.cli.terminal import Terminal

    try:
        measures = asyncio.run(_unless_stopped(measuring))
    except asyncio.CancelledError:
        leave(INTERRUPTED)
    if as_json:
        typer.echo(measure.as_json(name, measures))
    else:
        Terminal().print(measure.as_table(name, measures))


async def _unless_stopped(measuring: Coroutine[Any, Any, list[Measure]]) -> list[Measure]:
    """Signals that mean stop cancel it, so that it ends what it has started."""
    from flexmarl.local.supervisor import STOP_SIGNALS

    measurer = asyncio.ensure_future(measuring)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, measurer.cancel)
    return await measurer
