"""The nodes that a pod requires by its affinity, judged as the scheduler does; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Terms = tuple[Mapping[str, Any], ...]
NUMBER = re.compile(r"[+-]?[0-9]+")
LARGEST = 1 << 63
"""Kubernetes reads numbers of 64 bits."""


def required(spec: Mapping[str, Any]) -> Terms | None:
    """Of a pod's spec: a node has to meet one of these; None: any node will do."""
    by_node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    asked = by_node.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if asked is None else tuple(asked.get("nodeSelectorTerms") or ())


def meets(name: str, labels: Mapping[str, str], terms: Terms | None) -> bool:
    """Whether the node of that name and those labels is one of them."""
    return terms is None or any(_meets(name, labels, term) for term in terms)


def _meets(name: str, labels: Mapping[str, str], term: Mapping[str, Any]) -> bool:
    """All that it asks for; one that asks for nothing is met by no node."""
    asked, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    held = [_holds(one, labels) for one in asked]
    held += [_holds(one, {"metadata.name": name}) for one in fields]
    return bool(held) and all(held)


def _holds(asked: Mapping[str, Any], there: Mapping[str, str]) -> bool:
    found = there.get(asked["key"])
    values: Sequence[str] = asked.get("values") or ()
    match asked["operator"]:
        case "In" | "NotIn" as word:
            return (found in values) is (word == "In")
        case "Exists" | "DoesNotExist" as word:
            return (found is not None) is (word == "Exists")
        case "Gt" | "Lt" as word:
            number, bound = _number(found), _number(values[0] if len(values) == 1 else None)
            if number is None or bound is None:
                return False
            return number > bound if word == "Gt" else number < bound
        case _:  # of a later Kubernetes: what is not understood keeps no node out
            return True


def _number(text: str | None) -> int | None:
    """None: it is none."""
    if text is None or not NUMBER.fullmatch(text):
        return None
    found = int(text)
    return found if -LARGEST <= found < LARGEST else None
