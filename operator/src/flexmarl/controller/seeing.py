"""The API server's objects as what the controller knows of a job; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flexmarl.contracts.preparation import CONTAINER, Report
from flexmarl.controller.affinity import required
from flexmarl.controller.cache import Objects
from flexmarl.controller.capacity import requests
from flexmarl.controller.clock import seconds
from flexmarl.controller.ends import how_it_ended, of_pod, read
from flexmarl.controller.names import (
    ENGINE,
    EXPERIENCE,
    ORCHESTRATOR,
    POLICY_LABEL,
    POOL_LABEL,
    ROLE_LABEL,
    STEPS,
    TRAINER,
    WORKER,
    Manifest,
    child,
)
from flexmarl.controller.observed import (
    Ends,
    Finding,
    JobState,
    Observed,
    Pod,
    Progress,
    Workload,
)
from flexmarl.controller.owners import belongs
from flexmarl.controller.reading import Read
from flexmarl.controller.render import WORKLOADS
from flexmarl.controller.words import FIELDS

SILENT_SECONDS = 5.0
ROLES = (ORCHESTRATOR, WORKER, ENGINE, TRAINER, EXPERIENCE)


def observe(
    there: Objects,
    said: Read,
    *,
    now: float,
    progress: Progress | None,
    findings: Sequence[Finding],
    silence: str = "",
) -> Observed:
    """`said`: what was read of the job of `there`; `progress`: what its orchestrator said last;
    `findings`: what could not be applied."""
    assert there.job is not None
    metadata, spec = there.job["metadata"], there.job["spec"]
    leader = there.children.get(("Job", child(metadata["name"], "orchestrator")))
    state, reason = job_state(leader)
    if state is JobState.COMPLETE and _steps(leader) < spec["steps"]:  # they were raised
        state = JobState.ABSENT
    known = read(there.job.get("status") or {})
    return Observed(
        now=now,
        name=metadata["name"],
        generation=metadata.get("generation", 1),
        created=seconds(metadata.get("creationTimestamp")),
        suspend=bool(spec.get("suspend")),
        suspend_timeout=float(spec.get("suspendTimeout", 300)),
        deadline=spec.get("activeDeadlineSeconds"),
        problems=said.problems,
        unknown=said.unknown,
        later=said.later,
        own_store=own_store(spec),
        ran=bool((there.job.get("status") or {}).get("startTime")),
        orchestrator=state,
        orchestrator_reason=reason,
        pods=tuple(pod(one, known.get(one["metadata"]["uid"])) for one in there.of("Pod")),
        workloads=tuple(workload(one, now) for one in there.of(*WORKLOADS)),
        progress=progress if state is JobState.ACTIVE else None,
        silence=silence,
        findings=tuple(findings),
        limits=_limits(spec.get("roles") or {}),
    )


def own_store(spec: Mapping[str, Any]) -> bool:
    """Whether the job names a store; else it uses the installation's."""
    store = spec.get("store") or {}
    return bool(store.get("url") or store.get("secretRef"))


def leader(there: Objects, uid: str) -> str | None:
    """Address of the orchestrator's pod of the job of that uid, if that can be asked."""
    found = {
        name: one["status"]["podIP"]
        for (kind, name), one in there.children.items()
        if kind == "Pod"
        and one["metadata"].get("labels", {}).get(ROLE_LABEL) == ORCHESTRATOR
        and belongs(one, uid)
        and "deletionTimestamp" not in one["metadata"]
        and _ready(one.get("status", {}))
        and "podIP" in one["status"]
    }
    return found[max(found)] if found else None


def lost_its_store(there: Objects) -> bool:
    """Whether the service in front of the store ended and is not back: it may not be admitted."""
    return any(one.ended and not one.ready for one in _of_role(there, EXPERIENCE))


def _of_role(there: Objects, role: str) -> list[Pod]:
    marked = ((one["metadata"].get("labels", {}), one) for one in there.of("Pod"))
    return [pod(one) for marks, one in marked if marks.get(ROLE_LABEL) == role]


def _limits(roles: Mapping[str, Any]) -> dict[str, int]:
    """Of the spec as it is written: they hold for a job that is not understood, too."""
    written = {
        role: (roles.get(FIELDS.get(role, role)) or {}).get("restartPolicy") or {} for role in ROLES
    }
    return {role: int(one["max"]) for role, one in written.items() if "max" in one}


def _steps(leader: Mapping[str, Any] | None) -> float:
    """For how many the orchestrator's Job was made; infinite: it does not say so."""
    notes = leader["metadata"].get("annotations", {}) if leader else {}
    return float(notes.get(STEPS, "inf"))


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


def pod(manifest: Mapping[str, Any], known: Mapping[str, Ends] | None = None) -> Pod:
    """`known`: what was counted of its containers before."""
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
    count = of_pod(manifest, known or {})
    stuck = scheduled.get("status") == "False"
    over = status.get("phase") in ("Succeeded", "Failed")
    node, ready = manifest["spec"].get("nodeName", ""), _ready(status)
    unseen = status.get("phase") == "Pending" and not scheduled and not node
    since = "" if ready else conditions.get("Ready", scheduled).get("lastTransitionTime", "")
    disruption = conditions.get("DisruptionTarget", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=marks.get(ROLE_LABEL, ""),
        policy=marks.get(POLICY_LABEL, ""),
        pool=marks.get(POOL_LABEL, ""),
        phase=status.get("phase", "Pending"),
        ready=ready,
        deleting="deletionTimestamp" in metadata,
        ip=status.get("podIP", ""),
        node=node,
        restarts=count.restarts,
        crashes=count.crashes,
        ends=count.ends,
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        unschedulable=scheduled.get("message", "") if stuck else "",
        requests=requests(manifest["spec"]) if stuck else {},
        node_selector=manifest["spec"].get("nodeSelector", {}),
        tolerations=tuple(manifest["spec"].get("tolerations", ())) if stuck else (),
        affinity=required(manifest["spec"]) if stuck else None,
        unscheduled_since=seconds(metadata.get("creationTimestamp")) if unseen else 0,
        scheduler=manifest["spec"].get("schedulerName", ""),
        claims=() if node else _claims(manifest["spec"]),
        ended=how_it_ended(manifest, containers),
        prepared=prepared,
        report=report,
        disrupted=disruption.get("status") == "True",
        disruption=disruption.get("reason", ""),
        failure=status.get("reason", "") if over else "",
        failure_message=status.get("message", "") if over else "",
        failed_at=seconds(since or metadata.get("creationTimestamp")) if over else 0,
        unready_since=seconds(since) if node and not over else 0,
        preparing_since=seconds(first.get("state", {}).get("running", {}).get("startedAt")),
        gone_by=seconds(metadata.get("deletionTimestamp")),
        unstarted_since=_unstarted_since(status, conditions, everyone),
    )


def _unstarted_since(
    status: Mapping[str, Any], conditions: Mapping[str, Manifest], everyone: Iterable[Manifest]
) -> float:
    scheduled = conditions.get("PodScheduled", {})
    mounted = conditions.get("PodReadyToStartContainers", {}).get("status") == "True"
    begun = any("waiting" not in one.get("state", {"waiting": {}}) for one in everyone)
    if status.get("phase", "Pending") != "Pending" or scheduled.get("status") != "True":
        return 0
    return 0 if mounted or begun else seconds(scheduled.get("lastTransitionTime"))


def workload(manifest: Mapping[str, Any], now: float) -> Workload:
    metadata = manifest["metadata"]
    failures = [
        str(one.get("message", ""))
        for one in manifest.get("status", {}).get("conditions", ())
        if one["type"] == "ReplicaFailure" and one["status"] == "True"
    ]
    old = now - seconds(metadata.get("creationTimestamp")) > SILENT_SECONDS
    lacks = _lacks_pods(manifest)
    return Workload(
        kind=manifest["kind"],
        name=metadata["name"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, ""),
        pool=metadata.get("labels", {}).get(POOL_LABEL, ""),
        replicas=int(manifest["spec"].get("replicas", 1)),
        trouble=next(iter(failures), ""),
        deleting="deletionTimestamp" in metadata,
        uid=metadata["uid"],
        lacks=lacks,
        silent=old and not failures and lacks,
    )


def _lacks_pods(manifest: Mapping[str, Any]) -> bool:
    status = manifest.get("status", {})
    if manifest["kind"] == "Job":
        return not any(status.get(each) for each in ("active", "succeeded", "failed", "conditions"))
    return int(status.get("replicas", 0)) < int(manifest["spec"].get("replicas", 1))


def _ready(status: Mapping[str, Any]) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())
    )


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


def _claims(spec: Mapping[str, Any]) -> tuple[str, ...]:
    named = (
        one.get("persistentVolumeClaim", {}).get("claimName") for one in spec.get("volumes", ())
    )
    return tuple(filter(None, named))
