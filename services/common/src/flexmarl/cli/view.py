"""The state of a run, as `RunData` knows it, as tables for a terminal and as plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from flexmarl.cli.console import printable
from flexmarl.cli.rundata import Line, RunData, mapping, number
from flexmarl.cli.words import NONE, amount, decimal, duration, percent

TREND_WIDTH = 20
BAR_WIDTH = 78
RECENT_STEPS = 5
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLOURS = {"Complete": "green", "Failed": "red", "Stopped": "yellow"}


def overview(
    run: RunData, *, phase: str, elapsed: float | None, events: Sequence[str] = ()
) -> RenderableType:
    """All there is to see while a run goes on or afterwards; narrow terminals see less."""
    progress, metrics = run.progress, run.metrics
    parts: list[RenderableType] = [_headline(run, phase, elapsed)]
    if progress.steps:
        done: float = progress.step
        if progress.groups_total and progress.phase == "Running":
            done += progress.groups_done / progress.groups_total
        parts.append(Bar(done / progress.steps))
    if progress.message:
        parts.append(Text(printable(progress.message), style="red" if phase == "Failed" else "dim"))
    if metrics or run.evals:
        parts.append(_agents(run))
        if metrics:
            parts += [_policies(run), _costs(metrics)]
    else:
        parts.append(Text("No step is finished yet.", style="dim"))
    notes = [*run.notes, *events]
    parts += [Text(printable(note), style="yellow") for note in notes]
    return Group(*parts)


def _headline(run: RunData, phase: str, elapsed: float | None) -> RenderableType:
    progress = run.progress
    text = Text()
    text.append(printable(run.name), style="bold")
    text.append(f"   {phase}", style=_COLOURS.get(phase, "cyan"))
    text.append(f"   step {progress.step}/{progress.steps or '?'}")
    if progress.groups_total and phase in ("Running", "Evaluating"):
        text.append(f"   groups {progress.groups_done}/{progress.groups_total}")
    text.append(f"   {duration(elapsed)}")
    left = seconds_left(run)
    if left and phase in ("Running", "Evaluating"):
        text.append(f"   about {duration(left)} left", style="dim")
    return text


class Bar:
    """A share of 1, as wide as the terminal allows."""

    def __init__(self, share: float) -> None:
        self._share = min(max(share, 0.0), 1.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = min(BAR_WIDTH, options.max_width)
        done = round(self._share * width)
        yield Text("━" * done, style="cyan").append("─" * (width - done), style="dim")


class Columns:
    """A table that leaves columns out, the last of `spare` first, until it fits the terminal."""

    def __init__(self, *columns: str, spare: Sequence[str], left: Sequence[str] = ()) -> None:
        self._columns, self._spare, self._left = columns, tuple(spare), left
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        wide = options.update(max_width=10_000)
        for kept in range(len(self._spare), -1, -1):
            table = self._table(self._spare[kept:])
            if Measurement.get(console, wide, table).maximum <= options.max_width:
                break
        yield table

    def _table(self, dropped: Sequence[str]) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="dim")
        shown = [index for index, name in enumerate(self._columns) if name not in dropped]
        for index in shown:
            name = self._columns[index]
            left = index == 0 or name in self._left
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(row[index] for index in shown))
        return table


def _agents(run: RunData) -> Columns:
    table = Columns(
        "agent",
        "reward",
        "accuracy",
        "reward so far",
        "held out",
        spare=("reward", "held out", "accuracy", "reward so far"),
        left=("reward so far", "held out"),
    )
    last = run.metrics[-1] if run.metrics else {}
    for agent in run.agents:
        rewards = [number(line, "agents", agent, "reward") for line in run.metrics]
        table.add_row(
            printable(agent),
            decimal(number(last, "agents", agent, "reward")),
            percent(number(last, "agents", agent, "accuracy")),
            sparkline(binned(rewards, TREND_WIDTH)),
            _held_out(run.evals, agent),
        )
    return table


def result_table(run: RunData) -> Columns:
    """Per policy what the training made of it, as in summary.json."""
    names = ("policy", "version", "held out before", "after", "reward first", "last")
    table = Columns(*names, spare=("after", "held out before", "last", "reward first", "version"))
    for policy, result in mapping(run.summary, "policies").items():
        version = number(result, "version")
        table.add_row(
            printable(policy),
            NONE if version is None else f"{version:.0f}",
            percent(number(result, "eval_before")),
            percent(number(result, "eval_after")),
            decimal(number(result, "reward_first")),
            decimal(number(result, "reward_last")),
        )
    return table


def _held_out(evals: Sequence[Line], agent: str) -> str:
    values = [number(line, "agents", agent, "accuracy") for line in evals]
    if not values:
        return NONE
    first = percent(values[0])
    return f"{first} → {percent(values[-1])}" if len(values) > 1 else f"{first} before"


def _policies(run: RunData) -> Columns:
    names = ("policy", "version", "loss", "grad norm", "entropy", "log-prob gap", "lr")
    table = Columns(*names, spare=names[1:])
    last = run.metrics[-1]
    for policy in run.policies:

        def of(key: str, policy: str = policy) -> float | None:
            return number(last, "policies", policy, key)

        version = of("version")
        table.add_row(
            printable(policy),
            NONE if version is None else f"{version:.0f}",
            *(decimal(of(key)) for key in ("loss", "grad_norm", "entropy", "logprob_gap_mean")),
            decimal(of("lr")),
        )
    return table


def _costs(metrics: Sequence[Line]) -> Text:
    last = metrics[-1]
    parts = [f"{amount(tokens_per_second(last))} tokens/s"]
    for name in ("step", "rollout", "train", "sync", "checkpoint"):
        seconds = number(last, "seconds", name)
        if seconds is not None and (seconds or name != "checkpoint"):
            parts.append(f"{name} {seconds:.2f} s")
    parts += overlap_words(last)
    unscored = sum(int(number(a, "unscorable") or 0) for a in mapping(last, "agents").values())
    text = Text("   ".join(parts), style="dim")
    if unscored:
        text.append(f"\n{unscored} of the last step not scored", style="yellow")
    return text


def binned(values: Sequence[float | None], bins: int) -> list[float | None]:
    """At most `bins` means of neighbouring values; None where none is known."""
    size = max(1, -(-len(values) // bins))
    result: list[float | None] = []
    for start in range(0, len(values), size):
        known = [value for value in values[start : start + size] if value is not None]
        result.append(sum(known) / len(known) if known else None)
    return result


def sparkline(values: Sequence[float | None]) -> str:
    """One block per value between the lowest and the highest; a space where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(_BLOCKS) - 1
    return "".join(
        " " if value is None else _BLOCKS[round((value - low) / span * top) if span else top // 2]
        for value in values
    )


def tokens_per_second(line: Line) -> float | None:
    """Prompt and sampled tokens of a step over its seconds."""
    seconds = number(line, "seconds", "step")
    tokens = [number(line, "tokens", kind) for kind in ("prompt", "sampled")]
    known = [count for count in tokens if count is not None]
    return sum(known) / seconds if known and seconds else None


def seconds_left(run: RunData) -> float | None:
    """From the latest steps; None before the first."""
    spent = [number(line, "seconds", "step") for line in run.metrics[-RECENT_STEPS:]]
    known = [seconds for seconds in spent if seconds is not None]
    if not known or not run.progress.steps:
        return None
    return sum(known) / len(known) * max(run.progress.steps - run.progress.step, 0)


def step_line(line: Line, steps: int) -> str:
    """One finished step in one line."""
    done = int(number(line, "step") or 0) + 1
    parts = [f"step {done:>{len(str(steps))}}/{steps or '?'}"]
    for agent, score in mapping(line, "agents").items():
        reward, accuracy = number(score, "reward"), number(score, "accuracy")
        parts.append(f"{agent} {decimal(reward)} ({percent(accuracy)})")
    parts.append(f"{amount(tokens_per_second(line))} tokens/s")
    parts.append(duration(number(line, "seconds", "step")))
    parts += overlap_words(line)
    return "  ".join(parts).replace("\n", " ")


def overlap_words(line: Line) -> list[str]:
    """How old a step's oldest tokens were and what its filter dropped, if anything."""
    behind, dropped = number(line, "staleness", "trained"), number(line, "counts", "groups-dropped")
    words = [f"{behind:.0f} behind"] if behind else []
    return words + ([f"{dropped:.0f} dropped"] if dropped else [])


def eval_line(line: Line) -> str:
    """One evaluation in one line."""
    version = int(number(line, "step") or 0)
    scores = [
        f"{agent} {percent(number(score, 'accuracy'))}"
        for agent, score in mapping(line, "agents").items()
    ]
    return "  ".join([f"held out, version {version}:", *scores])
