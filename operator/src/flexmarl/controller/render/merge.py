"""A user's part of a pod template over ours."""

import copy
from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]


def laid_over(ours: Tree, theirs: Mapping[str, Any]) -> Tree:
    """`ours`, changed by `theirs`.

    Mappings are merged; lists whose items are named (containers, volumes, env) by name; tolerations
    and other lists of mappings are appended to; any other value is replaced, null takes it away.
    """
    found = copy.deepcopy(ours)
    for key, value in theirs.items():
        mine = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(mine, dict) and isinstance(value, Mapping):
            found[key] = laid_over(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            found[key] = _lists(mine, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _lists(ours: list[Any], theirs: list[Any]) -> list[Any]:
    if not all(isinstance(item, dict) for item in (*ours, *theirs)):
        return copy.deepcopy(theirs)
    found = copy.deepcopy(ours)
    places = {item["name"]: index for index, item in enumerate(found) if "name" in item}
    for item in theirs:
        index = places.get(item.get("name"))
        if index is None:
            found.append(copy.deepcopy(item))
        else:
            found[index] = laid_over(found[index], item)
    return found
