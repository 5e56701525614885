"""Numbers as people read them; an absent one is a dash."""

from __future__ import annotations

NONE = "-"


def amount(value: float | None) -> str:
    """1234567 -> 1.2M."""
    if value is None:
        return NONE
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            shown = value / (1e3 if letter == "k" else size)
            return f"{shown:.0f}{letter}" if shown >= 100 else f"{shown:.1f}{letter}"
    return f"{value:.0f}"


def decimal(value: float | None) -> str:
    """Three digits that tell something: 0.123, 12.3, 0.00012."""
    if value is None:
        return NONE
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}%"


def duration(seconds: float | None) -> str:
    """1:02:03, 2:03, 4.5 s."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
