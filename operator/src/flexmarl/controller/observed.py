"""What the controller knows of a job at one moment, out of the API server's objects; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from flexmarl.contracts.preparation import CONTAINER, Report
from flexmarl.controller.capacity import Amounts, Rooms, requests
from flexmarl.controller.names import POLICY_LABEL, POOL_LABEL, ROLE_LABEL, Manifest

SILENT_SECONDS = 5.0


class JobState(StrEnum):
    """Of the orchestrator's Job."""

    ABSENT = "absent"
    ACTIVE = "active"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended last."""

    exit_code: int
    reason: str = ""
    message: str = ""
    """The end of its output."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    role: str
    policy: str = ""
    pool: str = ""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    ip: str = ""
    node: str = ""
    restarts: int = 0
    """Of its containers, and 1 more once the pod itself has failed."""
    most_restarts: int = 0
    """Of one of its containers."""
    waiting: str = ""
    """Reason why a container does not start."""
    waiting_message: str = ""
    unschedulable: str = ""
    requests: Amounts = field(default_factory=dict)
    """What it asks of a node; known of a pod that finds none."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    ended: Ended | None = None
    prepared: bool = True
    """Its first container has ended well."""
    report: Report | None = None
    """What it said last; without one it counts as any other container."""
    disrupted: bool = False
    """Failed by no fault of its own: evicted, preempted, its node gone."""


@dataclass(frozen=True, slots=True)
class Workload:
    kind: str
    name: str
    role: str
    replicas: int = 0
    made_by: str = ""
    steps: str = ""
    trouble: str = ""
    """What keeps it from making pods, in the API server's words."""
    deleting: bool = False
    uid: str = ""
    silent: bool = False
    """It lacks pods for longer than making them takes, and its conditions do not say why."""
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the orchestrator says."""

    phase: str = ""
    step: int = 0
    steps: int = 0
    message: str = ""
    saved: int = -1
    """The step that it has saved because it was asked to stop; -1: not yet."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Engines, by pool."""
    engines: Mapping[str, int] = field(default_factory=dict)
    """Those that serve it, by policy."""
    reward: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that stands in the way, as a reason and a sentence that says what to do."""

    reason: str
    message: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    now: float
    name: str
    generation: int = 1
    created: float = 0
    suspend: bool = False
    suspend_timeout: float = 300
    deadline: float | None = None
    problems: tuple[str, ...] = ()
    """Why the spec cannot be used."""
    orchestrator: JobState = JobState.ABSENT
    orchestrator_reason: str = ""
    pods: tuple[Pod, ...] = ()
    workloads: tuple[Workload, ...] = ()
    progress: Progress | None = None
    findings: tuple[Finding, ...] = ()
    """Of what could not be applied."""
    rooms: Rooms | None = None
    """Of the nodes; None: nobody needs it, or the controller may not know."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Role -> restarts that one container may have."""

    @property
    def complete_pods(self) -> bool:
        """Every pod that is wanted is there and ready."""
        if not self.workloads:
            return False
        ready = [pod for pod in self.pods if pod.ready and not pod.deleting]
        return len(ready) >= self.wanted_pods

    @property
    def wanted_pods(self) -> int:
        return sum(one.replicas for one in self.workloads if one.kind != "Job") + 1


def seconds(text: str | None) -> float:
    """A time of the API server as seconds since 1970; 0 when there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def job_state(manifest: Mapping[str, Any] | None) -> tuple[JobState, str]:
    """Of a Job, and the API server's reason when it failed."""
    if manifest is None:
        return JobState.ABSENT, ""
    for condition in manifest.get("status", {}).get("conditions", ()):
        if condition["status"] == "True" and condition["type"] == "Complete":
            return JobState.COMPLETE, ""
        if condition["status"] == "True" and condition["type"] in ("Failed", "FailureTarget"):
            return JobState.FAILED, str(condition.get("reason", ""))
    return JobState.ACTIVE, ""


def pod(manifest: Mapping[str, Any]) -> Pod:
    metadata, status = manifest["metadata"], manifest.get("status", {})
    marks = metadata.get("labels", {})
    everyone = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    first: Manifest = next((one for one in everyone if one["name"] == CONTAINER), {})
    report = _report(first)
    containers = [one for one in everyone if report is None or one["name"] != CONTAINER]
    has_first = any(one["name"] == CONTAINER for one in manifest["spec"].get("initContainers", ()))
    prepared = not has_first or _ended_well(first)
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    waiting: Manifest = next(
        (state for one in everyone if (state := one.get("state", {}).get("waiting"))), {}
    )
    if report is not None and waiting.get("reason") == "CrashLoopBackOff" and not prepared:
        waiting = {}  # the report says more
    counts = [int(one.get("restartCount", 0)) for one in containers]
    failed = status.get("phase") == "Failed" and (prepared or report is None)
    stuck = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=marks.get(ROLE_LABEL, ""),
        policy=marks.get(POLICY_LABEL, ""),
        pool=marks.get(POOL_LABEL, ""),
        phase=status.get("phase", "Pending"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        ip=status.get("podIP", ""),
        node=manifest["spec"].get("nodeName", ""),
        restarts=sum(counts) + failed,
        most_restarts=max(counts, default=0),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=scheduled.get("message", "") if stuck else "",
        requests=requests(manifest["spec"]) if stuck else {},
        node_selector=manifest["spec"].get("nodeSelector", {}),
        ended=_ended(containers),
        prepared=prepared,
        report=report,
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
    )


def workload(manifest: Mapping[str, Any], made_by: str, steps: str, now: float) -> Workload:
    """`made_by` and `steps` are the names of annotations."""
    metadata = manifest["metadata"]
    notes = metadata.get("annotations", {})
    failures = [
        str(one.get("message", ""))
        for one in manifest.get("status", {}).get("conditions", ())
        if one["type"] == "ReplicaFailure" and one["status"] == "True"
    ]
    old = now - seconds(metadata.get("creationTimestamp")) > SILENT_SECONDS
    return Workload(
        kind=manifest["kind"],
        name=metadata["name"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, ""),
        pool=metadata.get("labels", {}).get(POOL_LABEL, ""),
        replicas=int(manifest["spec"].get("replicas", 1)),
        made_by=notes.get(made_by, ""),
        steps=notes.get(steps, ""),
        trouble=next(iter(failures), ""),
        deleting="deletionTimestamp" in metadata,
        uid=metadata["uid"],
        silent=old and not failures and _lacks_pods(manifest),
    )


def _lacks_pods(manifest: Mapping[str, Any]) -> bool:
    status = manifest.get("status", {})
    if manifest["kind"] == "Job":
        return not any(status.get(each) for each in ("active", "succeeded", "failed", "conditions"))
    return int(status.get("replicas", 0)) < int(manifest["spec"].get("replicas", 1))


def _ended_well(container: Mapping[str, Any]) -> bool:
    found = container.get("state", {}).get("terminated")
    return found is not None and found.get("exitCode") == 0


def _report(container: Mapping[str, Any]) -> Report | None:
    """Of the container that prepares a pod, from its last end."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        if found := state.get("terminated"):
            return Report.read(found.get("message", ""))
    return None


def pools(manifests: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Replicas of workloads, by pool."""
    marks = ((one["metadata"].get("labels", {}).get(POOL_LABEL), one) for one in manifests)
    return {pool: int(one["spec"].get("replicas", 1)) for pool, one in marks if pool}


def _ended(containers: Iterable[Manifest]) -> Ended | None:
    """Of the container that failed, if one did."""
    for one in containers:
        for state in (one.get("state", {}), one.get("lastState", {})):
            found = state.get("terminated")
            if found and found.get("exitCode"):
                return Ended(
                    int(found["exitCode"]), found.get("reason", ""), found.get("message", "")
                )
    return None
