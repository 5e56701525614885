"""`flexmarl episodes [RUN]`: what the agents said."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flexmarl.cli.commands.arguments import RunArgument
from flexmarl.cli.console import CommandError, printable
from flexmarl.cli.rundata import Line, RunData, mapping, number
from flexmarl.cli.words import NONE, decimal

AGENT_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
DEFAULT_COUNT = 5


def command(
    run: RunArgument = None,
    step: Annotated[int | None, typer.Option(min=1, help="Only those of this step.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help=f"The last so many ({DEFAULT_COUNT} by default).")
    ] = None,
    prompts: Annotated[bool, typer.Option(help="Also what each agent was told.")] = False,
) -> None:
    """Read episodes as they were played, also while the run goes on."""
    from flexmarl.cli.find import find_run
    from flexmarl.cli.terminal import Terminal

    data = RunData(find_run(run))
    data.refresh(episodes=True)
    found = [line for line in data.episodes if step is None or number(line, "step") == step - 1]
    if not found:
        raise CommandError(_nothing(data, step))
    if first is None and last is None and step is None:
        last = DEFAULT_COUNT
    chosen = _chosen(found, first, last)
    console = Terminal(soft_wrap=True)
    for line in chosen:
        for text in transcript(line, prompts=prompts):
            console.print(text)
        console.print()


def _nothing(data: RunData, step: int | None) -> str:
    steps = sorted(
        {int(at) + 1 for line in data.episodes if (at := number(line, "step")) is not None}
    )
    if not steps:
        return f"{data.root} holds no episodes yet"
    return (
        f"{data.root} holds no episodes of step {step}; it has those of {steps[0]} to {steps[-1]}"
    )


def _chosen(found: list[Line], first: int | None, last: int | None) -> list[Line]:
    if first is None and last is None:
        return found
    head = found[: first or 0]
    tail = found[max(len(found) - last, len(head)) :] if last else []
    return head + tail


def transcript(line: Line, *, prompts: bool) -> list[Any]:
    """One episode as rich texts, one per block."""
    from rich.text import Text

    agents = list(mapping(line, "agents"))
    styles = dict(zip(agents, AGENT_STYLES * len(agents), strict=False))
    head = Text()
    head.append(f"step {int(number(line, 'step') or 0) + 1}", style="bold")
    head.append(f"  task {printable(str(line.get('task_id', '?')))}")
    outcome = str(line.get("outcome", "ok"))
    if outcome != "ok":
        head.append(f"  {printable(outcome)}", style="red")
        if line.get("detail"):
            head.append(f": {printable(str(line['detail']))}")
    for agent in agents:
        reward = number(line, "agents", agent)
        style = "dim" if reward is None else "green" if reward > 0 else "red"
        head.append(f"  {printable(agent)} {NONE if reward is None else decimal(reward)}", style)
    blocks = [head]
    for key, value in mapping(line, "task").items():
        if isinstance(value, str | int | float):
            blocks.append(_block(str(key), str(value), "dim"))
    turns = line.get("turns")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict):
            blocks += _turn(turn, styles, prompts)
    return blocks


def _turn(turn: Line, styles: dict[str, str], prompts: bool) -> list[Any]:
    agent, messages = str(turn.get("agent", "?")), turn.get("messages")
    blocks = [
        _block(f"{message.get('role', '?')} > {agent}", str(message.get("content", "")), "dim")
        for message in (messages if prompts and isinstance(messages, list) else [])
        if isinstance(message, dict)
    ]
    reason = turn.get("finish_reason")
    ending = f" [{reason}]" if reason and reason != "stop" else ""
    return [*blocks, _block(agent, str(turn.get("text") or "") + ending, styles.get(agent, ""))]


def _block(label: str, text: str, style: str) -> Any:
    from rich.text import Text

    lines = printable(text).splitlines() or [""]
    block = Text(f"  {printable(label)}: ", style=style or "bold")
    for index, line in enumerate(lines):
        block.append(
            ("\n    " if index else "") + line, style="default" if style != "dim" else "dim"
        )
    return block
