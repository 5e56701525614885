"""A user's part of a pod template over ours."""

import copy
from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]

WHOLE = ("volumes", "env")
"""Lists whose items have one source among several: one of the same name takes the place of ours."""
KEYS = {"volumeMounts": "mountPath"}
"""What tells the items of a list apart where it is not their name."""


def laid_over(ours: Tree, theirs: Mapping[str, Any]) -> Tree:
    """`ours`, changed by `theirs`.

    Mappings are merged; lists whose items are named (containers) by name, of which volumes and env
    are replaced as a whole; mounts by their path; tolerations and other lists of mappings are
    appended to; any other value is replaced, null takes it away.
    """
    found = copy.deepcopy(ours)
    for key, value in theirs.items():
        mine = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(mine, dict) and isinstance(value, Mapping):
            found[key] = laid_over(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            found[key] = _lists(key, mine, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _lists(name: str, ours: list[Any], theirs: list[Any]) -> list[Any]:
    if not all(isinstance(item, dict) for item in (*ours, *theirs)):
        return copy.deepcopy(theirs)
    found, key = copy.deepcopy(ours), KEYS.get(name, "name")
    named = ((item.get(key), index) for index, item in enumerate(found))
    places = {text: index for text, index in named if isinstance(text, str)}
    for item in theirs:
        text = item.get(key)
        index = places.get(text) if isinstance(text, str) else None
        if index is None:
            found.append(copy.deepcopy(item))
        elif name in WHOLE:
            found[index] = copy.deepcopy(item)
        else:
            found[index] = laid_over(found[index], item)
    return found
