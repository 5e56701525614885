"""The conditions of a job's status; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flexmarl.controller.containers import STORE
from flexmarl.controller.findings import FULL, INVALID, TOO_OLD
from flexmarl.controller.names import EXPERIENCE, Manifest
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.preparation import Reason, fetched, passed
from flexmarl.controller.words import ENDED, named


def waiting_for(pods: Iterable[Pod]) -> str:
    waiting = [pod for pod in pods if not (pod.ready or pod.deleting or pod.phase in ENDED)]
    return f"waiting for {named(waiting)}" if waiting else "pods are being made"


def conditions(
    seen: Observed, findings: Sequence[Finding], phase: Phase, why: Reason
) -> list[Manifest]:
    unknown = ", ".join(seen.unknown)
    left_out = f"left out, for this controller does not know it: {unknown}" if unknown else ""
    refused = _first(findings, INVALID, TOO_OLD)
    ready = seen.complete_pods and phase in (Phase.STARTING, Phase.RUNNING)
    trouble = next(iter(findings), None)
    if ready:
        pods: Reason = "AllReady", ""
    elif trouble is not None:
        pods = trouble.reason, trouble.message
    elif phase in (Phase.STARTING, Phase.RUNNING):
        pods = "PodsNotReady", waiting_for(seen.pods)
    else:
        pods = why
    suspended = phase is Phase.SUSPENDED
    return [
        _condition("Accepted", refused is None, *(refused or ("Valid", left_out))),
        *_preparation(seen, phase, why),
        _condition("PodsReady", ready, *pods),
        _store(seen, findings, phase, why),
        _condition("Suspended", suspended, *(why if suspended else ("NotSuspended", ""))),
        _condition("Complete", phase is Phase.COMPLETE, *_outcome(phase, Phase.COMPLETE, why)),
        _condition("Failed", phase is Phase.FAILED, *_outcome(phase, Phase.FAILED, why)),
    ]


def _preparation(seen: Observed, phase: Phase, why: Reason) -> list[Manifest]:
    """Whether pods could be made fit for their processes."""
    if phase is Phase.COMPLETE:
        said = ((True, ("Fetched", "")), (True, ("Passed", "")))
    elif phase in (Phase.STARTING, Phase.RUNNING) or (phase is Phase.FAILED and seen.pods):
        said = (fetched(seen), passed(seen))
    else:
        said = ((False, why), (False, why))
    names = ("ModelsFetched", "PreflightPassed")
    return [_condition(name, holds, *text) for name, (holds, text) in zip(names, said, strict=True)]


def _store(seen: Observed, findings: Sequence[Finding], phase: Phase, why: Reason) -> Manifest:
    """Whether groups can be stored: its service is there, which looks at it before it serves, and
    nobody has met with trouble since."""
    services = [pod for pod in seen.pods if pod.role == EXPERIENCE]
    trouble = None if phase is Phase.COMPLETE else _first(findings, STORE, FULL)
    if trouble is not None:
        return _condition("StoreReady", False, *trouble)
    if phase not in (Phase.STARTING, Phase.RUNNING):
        return _condition("StoreReady", False, *why)
    if any(pod.ready and not pod.deleting for pod in services):
        return _condition("StoreReady", True, "Ready", "")
    return _condition("StoreReady", False, "PodsNotReady", waiting_for(services))


def _first(findings: Iterable[Finding], *reasons: str) -> Reason | None:
    return next(((one.reason, one.message) for one in findings if one.reason in reasons), None)


def _outcome(phase: Phase, wanted: Phase, why: Reason) -> Reason:
    return why if phase is wanted else ("NotFinished" if phase not in FINAL else phase.value, "")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
    }


def dated(
    before: Iterable[Mapping[str, Any]], conditions: Iterable[Manifest], now: str
) -> list[Manifest]:
    """Each with the time since when its status holds."""
    known = {one["type"]: one for one in before}
    found = []
    for condition in conditions:
        old = known.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        found.append(
            {**condition, "lastTransitionTime": old["lastTransitionTime"] if same else now}
        )
    return found
