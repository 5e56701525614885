"""Episodes as they were played, as HTML; whatever agents wrote is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from flexmarl.cli.console import printable
from flexmarl.cli.rundata import Line, mapping, number
from flexmarl.cli.words import NONE, decimal

LONGEST_TEXT = 4000


def first_and_last(episodes: Sequence[Line], count: int) -> tuple[list[Line], list[Line]]:
    """`count` episodes of the first step that has any, and of the last when it is another."""
    steps = [step for line in episodes if (step := number(line, "step")) is not None]
    if not steps:
        return [], []
    first, last = min(steps), max(steps)
    return _of_step(episodes, first)[:count], (
        _of_step(episodes, last)[:count] if last != first else []
    )


def _of_step(episodes: Sequence[Line], step: float) -> list[Line]:
    return [line for line in episodes if number(line, "step") == step]


def episode_card(line: Line) -> str:
    step = int(number(line, "step") or 0) + 1
    outcome = str(line.get("outcome", "ok"))
    chips = "".join(_chip(agent, line["agents"][agent]) for agent in mapping(line, "agents"))
    if outcome != "ok":
        chips += f'<span class="chip bad">{text_of(outcome)}</span>'
    turns = line.get("turns")
    body = "".join(_turn(turn) for turn in turns) if isinstance(turns, list) else ""
    return (
        f'<article class="card episode"><header><span>step {step}, task '
        f'{text_of(line.get("task_id", "?"))}</span><span class="chips">{chips}</span></header>'
        f"{_task(line.get('task'))}{body or '<p class=soft>No turn was taken.</p>'}</article>"
    )


def text_of(value: Any) -> str:
    """`value` escaped, shortened, without control characters."""
    text = printable(str(value))
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT} more characters)"
    return escape(text)


def _task(task: Any) -> str:
    if not isinstance(task, dict):
        return f'<div class="task"><pre>{text_of(task)}</pre></div>' if task is not None else ""
    rows = "".join(
        f"<dt>{text_of(key)}</dt><dd>{text_of(value)}</dd>"
        for key, value in task.items()
        if isinstance(value, str | int | float | bool)
    )
    return f'<div class="task"><dl>{rows}</dl></div>' if rows else ""


def _turn(turn: Any) -> str:
    if not isinstance(turn, dict):
        return ""
    count, reason = number(turn, "tokens"), turn.get("finish_reason")
    meta = [f"{count:.0f} tokens"] if count is not None else []
    meta += [text_of(reason)] if reason and reason != "stop" else []
    messages = turn.get("messages")
    prompt = "".join(
        f"<pre>{text_of(message.get('role', '?'))}: {text_of(message.get('content', ''))}</pre>"
        for message in (messages if isinstance(messages, list) else [])
        if isinstance(message, dict)
    )
    said = turn.get("text") or ""
    return (
        f'<div class="turn"><span class="meta">{", ".join(meta)}</span>'
        f"<b>{text_of(turn.get('agent', '?'))}</b>"
        f"<pre>{text_of(said) if said else '<i class=soft>(said nothing)</i>'}</pre>"
        + (f"<details><summary>what it was told</summary>{prompt}</details>" if prompt else "")
        + "</div>"
    )


def _chip(agent: str, reward: Any) -> str:
    value = number({"reward": reward}, "reward")
    kind = "" if value is None else "good" if value > 0 else "bad"
    shown = NONE if value is None else decimal(value).rstrip("0").rstrip(".")
    return f'<span class="chip {kind}">{text_of(agent)} {shown}</span>'
