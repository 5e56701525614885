"""What nodes have left: allocatable resources without what pods asked for; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.quantities import UNITS, quantity
from flexmarl.controller.affinity import Terms, meets
from flexmarl.controller.names import Manifest

KEEPS_OFF = ("NoSchedule", "NoExecute")
BYTES = ("memory", "ephemeral-storage", "hugepages-")
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Room:
    """One node that takes pods."""

    labels: Mapping[str, str]
    total: Amounts
    free: dict[str, float]
    taints: tuple[Mapping[str, str], ...] = ()
    """Those that keep pods off it."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rooms:
    nodes: tuple[Room, ...]
    exact: bool = True
    """False: pods of some namespaces are not seen, so that less may be free."""


def empty(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Room]:
    """Those that take pods, by name, as if they had none."""
    found = {}
    for node in nodes:
        spec, status = node["spec"], node.get("status", {})
        if not spec.get("unschedulable") and _is_ready(status):
            total = amounts(status.get("allocatable", {}))
            labels = node["metadata"].get("labels", {})
            taints = tuple(one for one in spec.get("taints", ()) if one["effect"] in KEEPS_OFF)
            name = node["metadata"]["name"]
            found[name] = Room(labels, total, {**total}, taints, name)
    return found


def admits(
    room: Room,
    selector: Mapping[str, str],
    tolerations: Sequence[Mapping[str, str]],
    terms: Terms | None = None,
) -> bool:
    """Whether pods of that selector, those tolerations and `terms` of a required affinity may be
    there, if there is room."""
    tolerated = (any(_tolerates(one, taint) for one in tolerations) for taint in room.taints)
    chosen = selector.items() <= room.labels.items() and meets(room.name, room.labels, terms)
    return chosen and all(tolerated)


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same = toleration.get("value", "") == taint.get("value", "")
    return toleration["key"] == taint["key"] and (exists or same)


def _is_ready(status: Mapping[str, Any]) -> bool:
    ready = (one["status"] for one in status.get("conditions", ()) if one["type"] == "Ready")
    return next(ready, "True") == "True"


def occupy(rooms: Mapping[str, Room], pods: Iterable[Mapping[str, Any]]) -> None:
    """Take away what these pods asked for, where they are."""
    for pod in pods:
        room = rooms.get(pod["spec"].get("nodeName", ""))
        if room is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for resource, amount in {**requests(pod["spec"]), "pods": 1.0}.items():
            if resource in room.free:
                room.free[resource] = max(0.0, room.free[resource] - amount)


def requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """What the scheduler counts for a pod: what it asks for as a whole; else its containers and
    sidecars together, or what one of the containers before them takes."""
    beside: list[Amounts] = [_asked(one) for one in spec.get("containers", ())]
    before: list[Amounts] = []
    for one in spec.get("initContainers", ()):
        (beside if one.get("restartPolicy") == "Always" else before).append(_asked(one))
    found = _sum(beside)
    for asked in before:
        for resource, amount in asked.items():
            found[resource] = max(found.get(resource, 0.0), amount)
    found |= amounts(spec.get("resources", {}).get("requests", {}))
    return _sum([found, amounts(spec.get("overhead", {}))])


def amounts(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: quantity(str(amount)) for name, amount in given.items()}


def shown(resource: str, amount: float) -> str:
    if not resource.startswith(BYTES):
        return f"{amount:.4g}"
    gib = amount / UNITS["Gi"]
    return f"{gib:.1f} Gi" if gib >= 1 else f"{amount / UNITS['Mi']:.0f} Mi"


def compared(resource: str, pods: Iterable[Amounts], nodes: Sequence[Room], exact: bool) -> str:
    """What pods that found no place want of a resource, and what is left on nodes for them."""
    asked = [pod.get(resource, 0.0) for pod in pods]
    free = [node.free.get(resource, 0.0) for node in nodes]
    total = sum(node.total.get(resource, 0.0) for node in nodes)
    least = "" if exact else "at most "
    said = (
        f"{shown(resource, sum(asked))} {resource} wanted, "
        f"{least}{shown(resource, sum(free))} free of {shown(resource, total)}"
    )
    if free and sum(free) >= max(asked) > max(free):
        said += f" and no more than {shown(resource, max(free))} on one node"
    return said


def _asked(container: Manifest) -> dict[str, float]:
    resources = container.get("resources", {})
    return amounts({**resources.get("limits", {}), **resources.get("requests", {})})


def _sum(parts: Iterable[Amounts]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            found[resource] = found.get(resource, 0.0) + amount
    return found
