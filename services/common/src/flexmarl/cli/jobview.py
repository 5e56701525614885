"""A MARLJob's status as a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flexmarl.cli.cluster import Object
from flexmarl.cli.console import printable
from flexmarl.cli.jobs import ENDED, phase_of, status_of
from flexmarl.cli.words import NONE

_COLOURS = {"Complete": "green", "Failed": "red", "Suspended": "yellow", "Suspending": "yellow"}


def overview(job: Object) -> RenderableType:
    """Phase and step, what is wrong, policies and pools."""
    status = status_of(job)
    parts: list[RenderableType] = [_headline(job, status)]
    parts += [Text(printable(line), style=style) for line, style in _notes(job, status)]
    for key, columns in (
        ("policies", ("name", "version", "engines", "slot", "transport")),
        ("pools", ("name", "ready", "wanted", "max")),
    ):
        rows = [row for row in _list(status.get(key)) if isinstance(row, dict)]
        if rows:
            parts.append(_table(key, columns, rows))
    return Group(*parts)


def _headline(job: Object, status: dict[str, Any]) -> Text:
    phase, metadata = phase_of(job), job["metadata"]
    text = Text(printable(metadata["name"]), style="bold")
    text.append(f"   {metadata['namespace']}", style="dim not bold")
    text.append(f"   {printable(phase)}", style=f"{_COLOURS.get(phase, 'cyan')} not bold")
    step = status.get("progress") or f"{status.get('step', 0)}/{job['spec'].get('steps', '?')}"
    text.append(f"   step {printable(str(step))}", style="not bold")
    for key, unit in (("reward", "reward"), ("tokensPerSecond", "tokens/s")):
        if status.get(key) not in (None, ""):
            text.append(f"   {unit} {printable(str(status[key]))}", style="not bold")
    return text


def _notes(job: Object, status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines with their style: why it is where it is."""
    if status.get("reason") or status.get("message"):
        yield _joined(status.get("reason"), status.get("message")), "dim"
    for condition in _list(status.get("conditions")):
        if isinstance(condition, dict) and _bad(condition):
            what = f"{condition.get('type')} {condition.get('reason') or ''}".strip()
            yield _joined(what, condition.get("message")), "yellow"
    failure = status.get("failure")
    if isinstance(failure, dict) and failure:
        where = failure.get("pod") or failure.get("role") or "the job"
        code = failure.get("exitCode")
        yield _joined(f"{where} failed" + (f" with exit code {code}" if code else ""),
                      failure.get("message")), "red"  # fmt: skip
    restarts = status.get("restarts")
    if isinstance(restarts, dict) and any(restarts.values()):
        counts = ", ".join(f"{role} {count}" for role, count in restarts.items() if count)
        yield f"restarts: {counts}", "dim"
    if not status and job["spec"].get("managedBy", "").startswith("flexmarl.io/"):
        yield "No controller has looked at it yet: is FlexMARL's running?", "yellow"
    if status.get("url") and phase_of(job) not in ENDED:
        yield str(status["url"]), "dim"


def _bad(condition: dict[str, Any]) -> bool:
    """Conditions whose name says that all is well are bad when False; the others when True."""
    fine = ("Ready", "Complete", "Admitted", "ModelsFetched", "Available", "Succeeded", "Scheduled")
    kind, is_true = str(condition.get("type")), condition.get("status") == "True"
    well = any(word in kind for word in fine)
    return bool(condition.get("message")) and (is_true != well) and kind != "Suspended"


def _joined(head: Any, tail: Any) -> str:
    return ": ".join(str(part) for part in (head, tail) if part)


def _table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    shown = [column for column in columns if any(column in row for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in shown:
        table.add_column(title if column == "name" else column, justify="left")
    for row in rows:
        table.add_row(*(printable(str(row.get(column, NONE))) for column in shown))
    return table


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
