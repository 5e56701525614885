"""Amounts as Kubernetes writes them; pure."""

from __future__ import annotations

UNITS = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
       "E": 1e18},
    **{f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")},
}  # fmt: skip


def quantity(text: str) -> float:
    """`100m`, `1.5Gi`, `3`. ValueError: it is none."""
    number = text.rstrip("numkKMGTPEi")
    unit = text[len(number) :]
    if unit and unit not in UNITS:
        raise ValueError(f"{text} is no amount")
    return float(number) * (UNITS[unit] if unit else 1.0)


def mebibytes(count: float) -> str:
    """Bytes, rounded up."""
    return f"{-int(-count // (1 << 20))}Mi"
