"""What the controller writes down of a job; pure. Counters live here, for pods do not last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flexmarl.contracts.cluster import PoolRole
from flexmarl.contracts.job import MARLJobSpec
from flexmarl.controller.findings import last_words
from flexmarl.controller.names import ENGINE, ORCHESTRATOR, Manifest
from flexmarl.controller.observed import Finding, JobState, Observed, Pod
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.preparation import fetched, passed

Reason = tuple[str, str]
"""A word for machines, a sentence for people."""


def phase_of(status: Mapping[str, Any]) -> Phase:
    return Phase(status.get("phase") or Phase.PENDING)


def overdue(status: Mapping[str, Any], seen: Observed) -> bool:
    """Whether the job has run for longer than it may."""
    started = status.get("startTime")
    return bool(started and seen.deadline) and seen.now > due(status, seen)


def due(status: Mapping[str, Any], seen: Observed) -> float:
    """When activeDeadlineSeconds will have passed; infinite without them."""
    started = status.get("startTime")
    if not started or seen.deadline is None:
        return float("inf")
    return datetime.fromisoformat(started).timestamp() + seen.deadline


def next_status(
    before: Mapping[str, Any],
    seen: Observed,
    findings: Sequence[Finding],
    phase: Phase,
    spec: MARLJobSpec | None,
) -> Manifest:
    """The whole status. Nothing in it changes while nothing happens."""
    found: Manifest = {"phase": phase.value, "observedGeneration": seen.generation}
    now = _time(seen.now)
    if phase in FINAL and phase_of(before) is phase:  # what was said when it ended stays
        return {**before, **found}
    reason, message = explain(before, seen, findings, phase)
    found |= {"reason": reason, "message": message}
    if phase is not Phase.PENDING:
        found["startTime"] = before.get("startTime") or now
    if phase in FINAL:
        found["completionTime"] = now
    if phase is Phase.SUSPENDING:
        found["suspendingSince"] = before.get("suspendingSince") or now
    if phase is Phase.FAILED:
        found["failure"] = _failure(seen, findings, message)
    found |= _restarts(before, seen)
    found |= _progress(before, seen, spec)
    if spec is not None:
        found |= _pods(spec, before, seen)
    conditions = _conditions(seen, findings, phase, (reason, message))
    found["conditions"] = _dated(before.get("conditions", ()), conditions, now)
    return found


def explain(
    before: Mapping[str, Any], seen: Observed, findings: Sequence[Finding], phase: Phase
) -> Reason:
    """Why the job is in this phase, and what to do about it where there is something to do."""
    trouble = next(iter(findings), None)
    match phase:
        case Phase.COMPLETE:
            found = "Trained", "every step is trained"
        case Phase.FAILED:
            found = _why_failed(before, seen, trouble)
        case Phase.SUSPENDED:
            found = "Suspended", "no pods; set spec.suspend to false and the job goes on"
        case Phase.SUSPENDING if seen.orchestrator is JobState.ACTIVE:
            found = "SavingState", "the last finished step is being saved"
        case Phase.SUSPENDING:
            found = "DeletingPods", f"{len(seen.pods)} pods are on their way out"
        case Phase.PENDING:
            found = "Unseen", ""
        case _ if trouble is not None:
            found = trouble.reason, trouble.message
        case Phase.RUNNING:
            said = seen.progress
            found = (said.phase, said.message) if said and said.phase else ("Running", "")
        case _:
            found = "PodsNotReady", _waiting_for(seen)
    return found


def _why_failed(before: Mapping[str, Any], seen: Observed, trouble: Finding | None) -> Reason:
    if seen.problems:
        return "InvalidSpec", "; ".join(seen.problems)
    if trouble is not None and trouble.fatal:
        return trouble.reason, trouble.message
    if seen.orchestrator is JobState.FAILED:
        words = next((text for pod in _ended(seen) if (text := last_words(pod))), "")
        beyond = seen.orchestrator_reason == "BackoffLimitExceeded"
        says = words or "the orchestrator failed and said nothing"
        if beyond:
            most = seen.limits.get(ORCHESTRATOR, 3)
            return "RestartsExceeded", f"the orchestrator failed after {most} restarts: {says}"
        return "JobFailed", says
    after = seen.deadline or 0
    return "DeadlineExceeded", f"not complete after activeDeadlineSeconds, {after:g} s"


def _waiting_for(seen: Observed) -> str:
    waiting = sorted(pod.name for pod in seen.pods if not pod.ready and not pod.deleting)
    if not waiting:
        return "pods are being made"
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return f"waiting for {', '.join(waiting[:3])}{more}"


def _ended(seen: Observed) -> list[Pod]:
    """The orchestrator's pods that failed."""
    return [pod for pod in seen.pods if pod.role == ORCHESTRATOR and pod.ended is not None]


def _failure(seen: Observed, findings: Sequence[Finding], message: str) -> Manifest:
    """Who it was, for `status.failure`; what is known of it."""
    fatal = next((finding for finding in findings if finding.fatal), None)
    suspects = _ended(seen)
    if fatal is not None:
        suspects = [pod for pod in seen.pods if pod.ended and pod.name in fatal.message]
    if not suspects:
        return {"message": message}
    pod = suspects[-1]
    code = pod.ended.exit_code if pod.ended else 0
    return {"role": pod.role, "pod": pod.name, "exitCode": code, "message": message}


def _restarts(before: Mapping[str, Any], seen: Observed) -> Manifest:
    """Restarts per role over all pods there ever were. Those of living pods are remembered by uid,
    so that a pod is counted once however often it is looked at."""
    # What was empty may come back as nothing: the API server drops it, or keeps a null.
    counts: dict[str, int] = dict(before.get("restarts") or {})
    known: Mapping[str, int] = before.get("restartsSeen") or {}
    living: dict[str, int] = {}
    for pod in seen.pods:
        more = 0 if pod.disrupted or pod.deleting else pod.restarts - known.get(pod.uid, 0)
        if more > 0:
            counts[pod.role] = counts.get(pod.role, 0) + more
        if pod.restarts:
            living[pod.uid] = max(pod.restarts, known.get(pod.uid, 0))
    if seen.orchestrator is JobState.FAILED and counts.get(ORCHESTRATOR):
        counts[ORCHESTRATOR] -= 1  # after the last failure nothing was started
    found: Manifest = {"restartsTotal": sum(counts.values())}
    if counts:
        found["restarts"] = counts
    if living:
        found["restartsSeen"] = living
    return found


def _progress(before: Mapping[str, Any], seen: Observed, spec: MARLJobSpec | None) -> Manifest:
    """How far it is; what was known before while the orchestrator says nothing."""
    keys = ("step", "steps", "progress", "reward", "tokensPerSecond")
    found = {key: before[key] for key in keys if key in before}
    if spec is not None:
        found["steps"] = spec.steps
    if (said := seen.progress) is not None:
        begins = said.phase == "Starting"  # and does not know yet where the job stands
        found["step"] = max(said.step, found.get("step") or 0) if begins else said.step
        if said.reward is not None:
            found["reward"] = f"{said.reward:.3g}"
        if said.tokens_per_second is not None:
            found["tokensPerSecond"] = f"{said.tokens_per_second:.0f}"
    if seen.orchestrator is JobState.COMPLETE and spec is not None:
        found["step"] = spec.steps
    if "step" in found and "steps" in found:
        found["progress"] = f"{found['step']}/{found['steps']}"
    return found


def _pods(spec: MARLJobSpec, before: Mapping[str, Any], seen: Observed) -> Manifest:
    """Per policy its engines, per pool its pods.

    Which engines of a pool serve a policy only the orchestrator knows.
    """
    known = {one["name"]: one.get("engines", 0) for one in before.get("policies") or ()}
    said = seen.progress.engines if seen.progress else known

    def ready(pods: Iterable[Pod]) -> int:
        return sum(pod.ready and not pod.deleting for pod in pods)

    version = seen.progress.step if seen.progress else None
    policies = []
    for policy in spec.policies:
        pool = spec.pool_of(policy.name, PoolRole.ENGINE)
        mine = [pod for pod in seen.pods if pod.role == ENGINE]
        if pool is not None:
            there = ready(pod for pod in mine if pod.pool == pool.name)
            engines = min(there, said.get(policy.name, 0))
        else:
            engines = ready(pod for pod in mine if pod.policy == policy.name)
        entry: Manifest = {"name": policy.name, "engines": engines}
        if version is not None and policy.trained:
            entry["version"] = version
        policies.append(entry)
    pools = []
    for pool in spec.pools:
        mine = [pod for pod in seen.pods if pod.pool == pool.name]
        wanted = sum(one.replicas for one in seen.workloads if one.pool == pool.name)
        pools.append({"name": pool.name, "ready": ready(mine), "wanted": wanted, "max": pool.max})
    return {"policies": policies, "pools": pools}


def _conditions(
    seen: Observed, findings: Sequence[Finding], phase: Phase, why: Reason
) -> list[Manifest]:
    problems = "; ".join(seen.problems)
    ready = seen.complete_pods and phase in (Phase.STARTING, Phase.RUNNING)
    trouble = next(iter(findings), None)
    if ready:
        pods: Reason = "AllReady", ""
    elif trouble is not None:
        pods = trouble.reason, trouble.message
    elif phase in (Phase.STARTING, Phase.RUNNING):
        pods = "PodsNotReady", _waiting_for(seen)
    else:
        pods = why
    suspended = phase is Phase.SUSPENDED
    return [
        _condition("Accepted", not problems, "InvalidSpec" if problems else "Valid", problems),
        *_preparation(seen, phase, why),
        _condition("PodsReady", ready, *pods),
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


def _outcome(phase: Phase, wanted: Phase, why: Reason) -> Reason:
    return why if phase is wanted else ("NotFinished" if phase not in FINAL else phase.value, "")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Manifest:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
    }


def _dated(
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


def _time(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"
