"""What the controller writes down of a job; pure. Counters live here, for pods do not last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from flexmarl.contracts.cluster import PoolRole
from flexmarl.contracts.job import MARLJobSpec
from flexmarl.controller.clock import clock, stamp
from flexmarl.controller.conditions import conditions, dated, waiting_for
from flexmarl.controller.containers import STORE
from flexmarl.controller.ends import written
from flexmarl.controller.findings import FULL, SILENT
from flexmarl.controller.names import ENGINE, ORCHESTRATOR, Manifest
from flexmarl.controller.nodes import STUCK
from flexmarl.controller.observed import Finding, JobState, Observed, Pod
from flexmarl.controller.phase import FINAL, Phase
from flexmarl.controller.preparation import Reason
from flexmarl.controller.words import last_words

HOLD_UP = (STUCK, SILENT, STORE, FULL)
"""What a suspension may wait for."""


def phase_of(status: Mapping[str, Any]) -> Phase:
    return Phase(status.get("phase") or Phase.PENDING)


def troubled(status: Mapping[str, Any], findings: Iterable[Finding]) -> bool:
    """Whether its reason is something that stands in the way."""
    found = any(finding.reason == status["reason"] for finding in findings)
    return found or phase_of(status) is Phase.FAILED


def is_news(before: Mapping[str, Any], status: Mapping[str, Any], *, trouble: bool) -> bool:
    """Whether people are to hear of it: another phase, or another trouble."""
    if status["phase"] != before.get("phase"):
        return True
    return trouble and status["reason"] != before.get("reason")


def next_status(
    before: Mapping[str, Any],
    seen: Observed,
    findings: Sequence[Finding],
    phase: Phase,
    spec: MARLJobSpec | None,
) -> Manifest:
    """The whole status. Nothing in it changes while nothing happens."""
    found: Manifest = {"phase": phase.value, "observedGeneration": seen.generation}
    now = stamp(seen.now)
    if phase in FINAL and phase_of(before) is phase:  # what was said when it ended stays
        return {**before, **found}
    reason, message = explain(before, seen, findings, phase)
    found |= {"reason": reason, "message": message}
    found |= clock(before, phase, seen.now)
    if phase in FINAL:
        found["completionTime"] = now
    if phase is Phase.SUSPENDING:
        found["suspendingSince"] = before.get("suspendingSince") or now
    if phase is Phase.FAILED:
        found["failure"] = _failure(seen, findings, message)
    found |= _restarts(before, seen)
    found |= _progress(before, seen, spec)
    if spec is not None:
        there = replace(seen, pods=(), workloads=()) if phase in FINAL else seen
        found |= _pods(spec, before, there, found.get("step"))
    else:  # it is not understood, and goes on
        found |= {key: before[key] for key in ("policies", "pools") if key in before}
    made = conditions(seen, findings, phase, (reason, message))
    found["conditions"] = dated(before.get("conditions", ()), made, now)
    return found


def explain(
    before: Mapping[str, Any], seen: Observed, findings: Sequence[Finding], phase: Phase
) -> Reason:
    """Why the job is in this phase, and what to do about it where there is something to do."""
    trouble = next(iter(findings), None)
    holds_up = next((one for one in findings if one.reason in HOLD_UP), None)
    match phase:
        case Phase.COMPLETE:
            found = "Trained", "every step is trained"
        case Phase.FAILED:
            found = _why_failed(before, seen, trouble)
        case Phase.SUSPENDED:
            found = "Suspended", "no pods; set spec.suspend to false and the job goes on"
        case Phase.SUSPENDING if holds_up is not None:
            found = holds_up.reason, holds_up.message
        case Phase.SUSPENDING:
            then = "" if seen.suspend else "; then the job starts again"
            saving = seen.orchestrator is JobState.ACTIVE
            found = (
                ("SavingState", f"the last finished step is being saved{then}")
                if saving
                else ("DeletingPods", f"{len(seen.pods)} pods are on their way out{then}")
            )
        case Phase.PENDING:
            found = "Unseen", ""
        case _ if trouble is not None:
            found = trouble.reason, trouble.message
        case Phase.RUNNING:
            said = seen.progress
            found = (said.phase, said.message) if said and said.phase else ("Running", "")
        case _:
            found = "PodsNotReady", waiting_for(seen.pods)
    return found


def _why_failed(before: Mapping[str, Any], seen: Observed, trouble: Finding | None) -> Reason:
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
    if ends := dict(chain.from_iterable(written(pod.uid, pod.ends) for pod in seen.pods)):
        found["ends"] = ends
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
    if seen.orchestrator is JobState.COMPLETE and "steps" in found:
        found["step"] = found["steps"]
    if "step" in found and "steps" in found:
        found["progress"] = f"{found['step']}/{found['steps']}"
    return found


def _pods(
    spec: MARLJobSpec, before: Mapping[str, Any], seen: Observed, step: int | None
) -> Manifest:
    """Per policy its engines and, if it is trained, its version, which is the step; per pool its
    pods.

    Which engines of a pool serve a policy only the orchestrator knows.
    """
    known = {one["name"]: one.get("engines", 0) for one in before.get("policies") or ()}
    said = seen.progress.engines if seen.progress else known

    def ready(pods: Iterable[Pod]) -> int:
        return sum(pod.ready and not pod.deleting for pod in pods)

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
        if step is not None and policy.trained:
            entry["version"] = step
        policies.append(entry)
    pools = []
    for pool in spec.pools:
        mine = [pod for pod in seen.pods if pod.pool == pool.name]
        wanted = sum(one.replicas for one in seen.workloads if one.pool == pool.name)
        pools.append({"name": pool.name, "ready": ready(mine), "wanted": wanted, "max": pool.max})
    return {"policies": policies, "pools": pools}
