"""What is told the first time only: thousands of episodes may go wrong alike."""

from __future__ import annotations

from collections.abc import Hashable

MOST_KINDS = 256


class Once:
    """Of one teller."""

    def __init__(self) -> None:
        self._kinds: set[Hashable] = set()

    def first(self, kind: Hashable) -> bool:
        """Whether it is to be told: nothing of its kind was, and not too many kinds were."""
        if kind in self._kinds or len(self._kinds) >= MOST_KINDS:
            return False
        self._kinds.add(kind)
        return True
