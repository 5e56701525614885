"""Whose turn it is to be asked: many are asked less often, not more at once; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flexmarl.controller.cache import Key


def turn(
    asked: Mapping[Key, float], ready: Collection[Key], hurried: Collection[Key], most: int
) -> list[Key]:
    """Of those that are `ready` at most so many: first the `hurried`, then who was not asked for
    longest. `asked`: when each was, if it was."""
    never = float("-inf")
    return sorted(ready, key=lambda key: (key not in hurried, asked.get(key, never)))[:most]
