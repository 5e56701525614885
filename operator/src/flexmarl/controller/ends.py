"""How often the containers of a job's pods have ended, and which ends were crashes; pure.

Kubernetes counts for each container how often it was started again, whatever for, and keeps its
last end or two. What was counted before is in the job's status, so each end is judged once:

- 75 is a wait: what the container needs does not answer yet, and it asks to be tried again.
- An end of which nobody knows how it came is the node's, which has lost the container.
- 0 of a container that is to end is none.
- Anything else is a crash. HOPELESS is not counted: it ends the job by itself.

Ends that nobody met, because the controller was away, count as crashes if nothing but crashes was
ever met of that container, and it has not done its work since. So crashes of one that has waited
may be missed then; and waits count as crashes where a crash is the first end that is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.preparation import PASSING
from flexmarl.controller.clock import seconds
from flexmarl.controller.names import MAIN, Manifest
from flexmarl.controller.observed import Ended, Ends
from flexmarl.runtime.process import HOPELESS

UNKNOWN = ("Unknown", "ContainerStatusUnknown")
"""Reasons of ends that came with the node: it started anew, or its runtime lost the container."""
Container = Mapping[str, Any]
"""The status of one."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one pod."""

    ends: Mapping[str, Ends]
    """By container, of those that have ended."""
    restarts: int
    """After crashes; a pod that has failed by one is replaced, which is one more."""
    crashes: int
    """The most of one container."""


NONE = Counted({}, 0, 0)


def of_pod(manifest: Mapping[str, Any], known: Mapping[str, Ends]) -> Counted:
    """`known`: what was counted of its containers before."""
    if not known and not _has_ends(manifest.get("status", {})):  # as most, at most looks
        return NONE
    found: dict[str, Ends] = {}
    restarts = failed = 0
    for container, completes in _containers(manifest):
        name = container["name"]
        ends = counted(known.get(name, Ends()), container, completes=completes)
        if not ends.all:
            continue
        found[name] = ends
        rests = ends.all > int(container.get("restartCount", 0))
        last_crashed = rests and _is_crash(_met(container, completes=completes)[1][-1], completes)
        restarts += ends.crashes - last_crashed
        failed |= last_crashed
    over = manifest.get("status", {}).get("phase") == "Failed"
    most = max((ends.crashes for ends in found.values()), default=0)
    return Counted(found, restarts + (over and failed), most)


def counted(before: Ends, container: Container, *, completes: bool = False) -> Ends:
    """With what is met now. `completes`: it is there to end, and 0 is its success."""
    ends, met = _met(container, completes=completes)
    new = ends - before.all
    if new <= 0:  # the runtime may have lost its count
        return Ends(ends, before.crashes)
    judged = [_is_crash(end, completes) for end in met[-new:]]
    done = completes and container.get("state", {}).get("terminated", {}).get("exitCode") == 0
    only_crashes = judged and all(judged) and before.all <= before.crashes and not done
    return Ends(ends, before.crashes + (new if only_crashes else sum(judged)))


def read(status: Mapping[str, Any]) -> dict[str, dict[str, Ends]]:
    """What a job's status says was counted: by uid of the pod and name of the container."""
    found: dict[str, dict[str, Ends]] = {}
    for key, ends in (status.get("ends") or {}).items():
        uid, _, container = key.partition("/")
        found.setdefault(uid, {})[container] = Ends(ends["all"], ends["crashes"])
    return found


def written(uid: str, ends: Mapping[str, Ends]) -> Iterator[tuple[str, dict[str, int]]]:
    """As `read` reads it."""
    for container, found in ends.items():
        yield f"{uid}/{container}", {"all": found.all, "crashes": found.crashes}


def _has_ends(status: Mapping[str, Any]) -> bool:
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if (
            one.get("restartCount")
            or one.get("lastState")
            or one.get("state", {}).get("terminated", {}).get("exitCode", 0)
        ):
            return True
    return False


def _containers(manifest: Mapping[str, Any]) -> Iterator[tuple[Container, bool]]:
    """Each, and whether it is there to end."""
    status = manifest.get("status", {})
    beside = {
        one["name"]
        for one in manifest["spec"].get("initContainers", ())
        if one.get("restartPolicy") == "Always"
    }
    for one in status.get("initContainerStatuses", ()):
        yield one, one["name"] not in beside
    for one in status.get("containerStatuses", ()):
        yield one, False


def _met(container: Container, *, completes: bool) -> tuple[int, list[Mapping[str, Any]]]:
    """How often it has ended, and its last ends, as far as they can be seen."""
    state, restarts = container.get("state", {}), int(container.get("restartCount", 0))
    now, before = state.get("terminated"), container.get("lastState", {}).get("terminated")
    seen = [before] if before else []
    if now and not (completes and now.get("exitCode") == 0):
        return restarts + 1, [*seen, now]
    if before and "waiting" in state:  # to be started again, which is counted when it happens
        return restarts + 1, seen
    return restarts, seen


def _is_crash(end: Mapping[str, Any], completes: bool) -> bool:
    code = end.get("exitCode")
    fine = (PASSING, HOPELESS, 0) if completes else (PASSING, HOPELESS)
    return code not in fine and end.get("reason") not in UNKNOWN


def how_it_ended(manifest: Mapping[str, Any], containers: Iterable[Manifest]) -> Ended | None:
    """Of the container that failed, if one did.

    Of several: one that no restart mends, else main unless it runs again (what is beside it ends
    with it), else the last one.
    """
    found = []
    for one in containers:
        resting = one["name"] == MAIN and "running" not in one.get("state", {})
        for state in (one.get("state", {}), one.get("lastState", {})):
            end = state.get("terminated")
            if end and end.get("exitCode"):
                ended = _how(manifest, one["name"], end)
                when = end.get("finishedAt") or ""
                found.append((ended.exit_code == HOPELESS, resting, when, ended))
    return max(found, key=lambda each: each[:3])[3] if found else None


def _how(manifest: Mapping[str, Any], container: str, end: Mapping[str, Any]) -> Ended:
    spec = manifest["spec"]
    everyone = [*spec.get("initContainers", ()), *spec.get("containers", ())]
    own: Manifest = next((one for one in everyone if one["name"] == container), {})
    probe: Manifest = own.get("startupProbe", {})
    patience = int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))
    began, over = seconds(end.get("startedAt")), seconds(end.get("finishedAt"))
    # Had it answered once, its pod would have been ready in that life.
    never = _unready_since(manifest.get("status", {})) <= began
    return Ended(
        int(end["exitCode"]),
        end.get("reason", ""),
        end.get("message", ""),
        container,
        str(own.get("resources", {}).get("limits", {}).get("memory", "")),
        patience if probe and began and never and over - began >= patience else 0,
    )


def _unready_since(status: Mapping[str, Any]) -> float:
    """Infinite while it is ready."""
    for one in status.get("conditions", ()):
        if one["type"] == "Ready" and one["status"] != "True":
            return seconds(one.get("lastTransitionTime"))
    return float("inf")
