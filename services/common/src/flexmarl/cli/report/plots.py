"""Charts as inline SVG: lines over steps, stacked bars per step, bars before and after.

Pure functions of numbers and names. Colours are CSS variables of the page (`--series-1`...), so
that one drawing suits the light and the dark theme; every column of a chart says its values in a
tooltip of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from flexmarl.cli.report.scales import Scale, label, round_range, step_marks
from flexmarl.cli.words import decimal

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 30
MOST_POINTS = 240
COLOURS = 8

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """A named line or stack; `points` are (step, value) in order of steps."""

    name: str
    points: list[tuple[int, float]]
    colour: int = 0
    dots: bool = False
    """Marks only, joined by a dashed line: few values that matter one by one."""


def line_chart(
    series: Sequence[Series], *, bounds: tuple[float, float] | None = None, form: Format = decimal
) -> str:
    """Lines over steps; empty text where all is zero or nothing. `bounds` are shown at least."""
    drawn = [Series(s.name, thin(s.points), s.colour, s.dots) for s in series if s.points]
    if not any(value for one in drawn for _, value in one.points):
        return ""
    values = [value for one in drawn for _, value in one.points]
    low, high = min(values), max(values)
    if bounds is not None:
        low, high = min(low, bounds[0]), max(high, bounds[1])
    bottom, top, marks = round_range(low, high)
    steps = [step for one in drawn for step, _ in one.points]
    x = _steps_scale(min(steps), max(steps))
    y = Scale(bottom, top, HEIGHT - BOTTOM, TOP)
    body = [_axes(x, y, marks, (min(steps), max(steps)))]
    for one in drawn:
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in one.points)
        colour = f"var(--series-{one.colour % COLOURS + 1})"
        kind = "guide" if one.dots else "line"
        body.append(f'<polyline class="{kind}" points="{path}" stroke="{colour}"/>')
        if one.dots or len(one.points) == 1:
            body += [
                f'<circle class="dot" cx="{x(step):.1f}" cy="{y(value):.1f}" r="4" '
                f'fill="{colour}"/>'
                for step, value in one.points
            ]
    body.append(_tooltips(drawn, x, form))
    return _svg(body, [(one.name, one.colour) for one in drawn if not one.dots])


def stacked_bars(series: Sequence[Series], *, form: Format = decimal) -> str:
    """One bar per step, the series on top of each other; many steps are averaged."""
    drawn = [Series(s.name, thin(s.points, 60), s.colour) for s in series if s.points]
    if not drawn:
        return ""
    columns: dict[int, list[tuple[float, int]]] = {}
    for one in drawn:
        for step, value in one.points:
            columns.setdefault(step, []).append((max(value, 0.0), one.colour))
    totals = [sum(value for value, _ in column) for column in columns.values()]
    _, top, marks = round_range(0.0, max(totals))
    steps = sorted(columns)
    width = (WIDTH - LEFT - RIGHT) / len(steps)
    x = Scale(0, len(steps), LEFT, WIDTH - RIGHT)
    y = Scale(0.0, top, HEIGHT - BOTTOM, TOP)
    middle = Scale(steps[0], max(steps[-1], steps[0] + 1), x(0.5), x(len(steps) - 0.5))
    body = [_axes(middle, y, [mark for mark in marks if mark >= 0], (steps[0], steps[-1]))]
    for index, step in enumerate(steps):
        base = 0.0
        for value, colour in columns[step]:
            height = y(base) - y(base + value)
            body.append(
                f'<rect x="{x(index) + width * 0.1:.1f}" y="{y(base + value):.1f}" '
                f'width="{width * 0.8:.1f}" height="{height:.1f}" '
                f'fill="var(--series-{colour % COLOURS + 1})"/>'
            )
            base += value
    body.append(_tooltips(drawn, middle, form))
    return _svg(body, [(one.name, one.colour) for one in drawn])


def before_after(rows: Sequence[tuple[str, float, float, int]]) -> str:
    """Two horizontal bars (shares of 1) per (name, before, after, colour)."""
    if not rows:
        return ""
    left, right = 110, 70
    height = max(62, (HEIGHT - 28) // len(rows) if len(rows) > 1 else 62)
    bar = (height - 22) // 2 - 2
    x = Scale(0.0, 1.0, left, WIDTH - right)
    body = []
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(f'<line class="grid" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="4" '
                    f'y2="{len(rows) * height + 4}"/>')  # fmt: skip
        body.append(f'<text class="tick" x="{x(mark):.1f}" y="{len(rows) * height + 20}" '
                    f'text-anchor="middle">{mark:.0%}</text>')  # fmt: skip
    for index, (name, before, after, colour) in enumerate(rows):
        top = index * height + 10
        fill = f"var(--series-{colour % COLOURS + 1})"
        body.append(f'<text class="name" x="{left - 12}" y="{top + bar + 6}" '
                    f'text-anchor="end">{escape(_short(name))}</text>')  # fmt: skip
        for offset, value, faded, word in (
            (0, before, 0.35, "before"),
            (bar + 4, after, 1, "after"),
        ):
            share = min(max(value, 0.0), 1.0)
            body.append(
                f'<rect x="{left}" y="{top + offset}" width="{x(share) - left:.1f}" height="{bar}" '
                f'rx="2" fill="{fill}" fill-opacity="{faded}"><title>{escape(name)} {word}: '
                f"{value:.1%}</title></rect>"
                f'<text class="value" x="{x(share) + 7:.1f}" '
                f'y="{top + offset + bar / 2 + 4:.1f}">{value:.1%}</text>'
            )
    return _svg(body, [], height=len(rows) * height + 28)


def thin(points: Sequence[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """At most `most` points: means of neighbours, at the last one's step."""
    size = -(-len(points) // most) if points else 1
    if size == 1:
        return list(points)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _steps_scale(first: int, last: int) -> Scale:
    if first == last:
        return Scale(first - 1, last + 1, LEFT, WIDTH - RIGHT)
    return Scale(first, last, LEFT + 4, WIDTH - RIGHT - 4)


def _axes(x: Scale, y: Scale, marks: Sequence[float], steps: tuple[int, int]) -> str:
    parts = []
    for mark in marks:
        kind = "axis" if mark == marks[0] else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                     f'y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')  # fmt: skip
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(mark) + 4:.1f}" '
                     f'text-anchor="end">{label(mark, marks)}</text>')  # fmt: skip
    for step in step_marks(*steps):
        parts.append(f'<text class="tick" x="{x(step):.1f}" y="{HEIGHT - 10}" '
                     f'text-anchor="middle">{step}</text>')  # fmt: skip
    return "".join(parts)


def _tooltips(series: Sequence[Series], x: Scale, form: Format) -> str:
    """An invisible column per step that shows a line and, after a moment, the values."""
    values: dict[int, list[str]] = {}
    for one in series:
        for step, value in one.points:
            values.setdefault(step, []).append(f"{one.name}: {form(value)}")
    places = sorted(values)
    parts = []
    for index, step in enumerate(places):
        before = x(places[index - 1]) if index else LEFT
        after = x(places[index + 1]) if index + 1 < len(places) else WIDTH - RIGHT
        left = (before + x(step)) / 2 if index else LEFT
        right = (after + x(step)) / 2 if index + 1 < len(places) else WIDTH - RIGHT
        text = escape("\n".join([f"step {step}", *values[step]]))
        parts.append(
            f'<g class="column"><line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}"/><rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
            f'height="{HEIGHT - BOTTOM - TOP}"><title>{text}</title></rect></g>'
        )
    return "".join(parts)


def _svg(body: Sequence[str], legend: Sequence[tuple[str, int]], height: int = HEIGHT) -> str:
    keys = "".join(
        f'<span><i style="background:var(--series-{colour % COLOURS + 1})"></i>{escape(name)}'
        "</span>"
        for name, colour in legend
    )
    return (
        f'<div class="legend">{keys}</div>' * bool(legend)
        + f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(body)}</svg>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"
