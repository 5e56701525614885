"""A MARLJob's status as a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flexmarl.cli.console import printable
from flexmarl.cli.jobs import phase_of, status_of
from flexmarl.cli.refusals import Object
from flexmarl.cli.words import NONE

PREPARED = ("Accepted", "ModelsFetched", "PreflightPassed", "PodsReady", "StoreReady")
"""Conditions that are bad when False; the others say again what the phase says."""
_COLOURS = {"Complete": "green", "Failed": "red", "Suspended": "yellow", "Suspending": "yellow"}


def overview(job: Object) -> RenderableType:
    """Phase and step, what is wrong, policies and pools."""
    status = status_of(job)
    parts: list[RenderableType] = [_headline(job, status)]
    parts += [Text(printable(line), style=style) for line, style in _notes(job, status)]
    for key, columns in (
        ("policies", ("name", "version", "engines")),
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
    """Lines with their style: why it is where it is, no sentence twice."""
    if status.get("reason") or status.get("message"):
        yield _joined(status.get("reason"), status.get("message")), "dim"
    if "deletionTimestamp" in job["metadata"]:
        yield "It is being deleted.", "yellow"
    said = {None, "", status.get("message")}
    for condition in _list(status.get("conditions")):
        if isinstance(condition, dict) and _bad(condition) and condition["message"] not in said:
            said.add(condition["message"])
            what = f"{condition.get('type')} {condition.get('reason') or ''}".strip()
            yield _joined(what, condition["message"]), "yellow"
    failure = status.get("failure")
    if isinstance(failure, dict) and failure:
        where, code = failure.get("pod") or failure.get("role"), failure.get("exitCode")
        message = None if failure.get("message") in said else failure.get("message")
        what = f"{where or 'the job'} failed{f' with exit code {code}' if code else ''}"
        if where or message:
            yield _joined(what, message), "red"
    restarts = status.get("restarts")
    if isinstance(restarts, dict) and any(restarts.values()):
        counts = ", ".join(f"{role} {count}" for role, count in restarts.items() if count)
        yield f"restarts: {counts}", "dim"
    if not status and job["spec"].get("managedBy", "").startswith("flexmarl.io/"):
        yield "No controller has looked at it yet: is FlexMARL's running?", "yellow"


def _bad(condition: dict[str, Any]) -> bool:
    named = condition.get("type") in PREPARED and isinstance(condition.get("message"), str)
    return named and condition.get("status") == "False"


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
