"""What stands in a job's way, from the state of its pods: reasons and sentences; pure.

A reason is one word for machines; the sentence names the object and says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from flexmarl.controller import preparation
from flexmarl.controller.capacity import compared
from flexmarl.controller.names import EXPERIENCE, ORCHESTRATOR
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.runtime.process import HOPELESS

PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
UNCONFIGURED = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
RESTARTING = {"CrashLoopBackOff"}
GANG = "pod group is unschedulable"
"""What Kubernetes' own gang scheduling says of pods that wait for others."""
LONGEST = 400
"""Of the words of others in a sentence."""
STORE_WORDS = ("the store", "store.")
"""With which the last words of the service in front of the store begin when that is at fault."""
INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")


def find(seen: Observed) -> list[Finding]:
    """All of it, what matters most first; one finding per reason."""
    found: dict[str, Finding] = {}
    of_pods = (*preparation.findings(seen.pods), *_of_pods(seen))
    for finding in (*seen.findings, *of_pods, *_of_workloads(seen)):
        found.setdefault(finding.reason, finding)
    return sorted(found.values(), key=lambda finding: not finding.fatal)


def _of_pods(seen: Observed) -> Iterator[Finding]:
    stuck: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if pod.deleting:
            continue
        yield from _beyond_hope(pod, seen)
        said = shortened(pod.waiting_message)
        if pod.waiting in PULLING:
            yield Finding(
                "ImagePullFailed",
                f"{pod.name} cannot pull its image: {said}; push the image, or give the "
                "installation image.pullSecrets",
            )
        elif pod.waiting in UNCONFIGURED and "secret" in said.lower():
            yield Finding("SecretMissing", f"{pod.name} cannot start: {said}; create the Secret")
        elif pod.waiting in UNCONFIGURED:
            yield Finding("PodMisconfigured", f"{pod.name} cannot start: {said}")
        elif (found := _store(pod)) is not None:
            yield found
        elif pod.waiting in RESTARTING:
            words = last_words(pod)
            yield Finding(
                "ContainerRestarting",
                f"{pod.name} has ended {pod.restarts} times and waits to be restarted"
                f"{': ' + words if words else ''}",
            )
        if pod.unschedulable:
            stuck.setdefault(pod.unschedulable, []).append(pod)
    gang = [pod for message in [*stuck] if GANG in message for pod in stuck.pop(message)]
    for message, pods in stuck.items():
        yield _unschedulable(message, pods, gang, seen)
    if gang and not stuck:
        yield Finding("GangWaiting", f"{len(gang)} pods start together once there is room for all")


def _store(pod: Pod) -> Finding | None:
    """Whether the service in front of the store ended for want of it, and is not back."""
    words = last_words(pod)
    if pod.role != EXPERIENCE or pod.ready or not words.startswith(STORE_WORDS):
        return None
    if pod.ended is not None and pod.ended.exit_code == HOPELESS:
        return None
    return Finding(
        "StoreUnreachable",
        f"{pod.name}: {words}; see whether the store runs and admits the job's pods, and whether "
        "the URL in store.url or in the Secret of store.secretRef is right",
    )


def _beyond_hope(pod: Pod, seen: Observed) -> Iterator[Finding]:
    if pod.role == ORCHESTRATOR or pod.ended is None:  # of the orchestrator its Job says so
        return
    words = last_words(pod)
    if pod.ended.exit_code == HOPELESS:
        yield Finding("ProcessFailed", f"{pod.name}: {words or 'it said nothing'}", fatal=True)
    elif pod.most_restarts > (most := seen.limits.get(pod.role, 3)):
        yield Finding(
            "RestartsExceeded",
            f"{pod.name} ended more often than the {most} restarts that restartPolicy.max allows; "
            f"the last time with exit code {pod.ended.exit_code}{': ' + words if words else ''}",
            fatal=True,
        )


def _unschedulable(message: str, pods: list[Pod], gang: Sequence[Pod], seen: Observed) -> Finding:
    """`gang`: those that wait for these."""
    said, names = shortened(message), ", ".join(sorted(pod.name for pod in pods)[:3])
    more = f" and {len(pods) - 3} more" if len(pods) > 3 else ""
    who = f"{names}{more}"
    like = {(pod.role, pod.pool) for pod in pods}
    placed = sum(bool(pod.node) for pod in seen.pods if (pod.role, pod.pool) in like)
    lacking = sorted(set(INSUFFICIENT.findall(message)))
    if "PersistentVolumeClaim" in message or "persistentvolumeclaim" in message:
        return Finding(
            "ClaimPending",
            f"{who}: {said}; create the claim that the job names in a pvc:// URI, spec.cache or "
            "spec.checkpoint; for the one that it makes, name a StorageClass in "
            "spec.checkpoint.claim, or give the cluster a default one",
        )
    if lacking:
        wanted = len(pods) + len(gang) + placed
        less = (
            "suspend the job, lower the pool's min and resume it: a gang starts as a whole"
            if gang
            else "lower the pool's min or the role's replicas"
        )
        return Finding(
            "InsufficientCapacity",
            f"{wanted} pods wanted, {placed} placed: no node has enough "
            f"{', '.join(lacking)} left for {who} ({_numbers(lacking, pods, seen) or said}); "
            f"free or add nodes, or {less}",
        )
    if "affinity" in message or "selector" in message or "taint" in message:
        return Finding(
            "NoMatchingNode",
            f"no node may run {who} ({said}); mend nodeSelector or tolerations of the pool, or "
            "label the nodes",
        )
    return Finding("Unschedulable", f"{who}: {said}")


def _numbers(lacking: Iterable[str], pods: Sequence[Pod], seen: Observed) -> str:
    """Of each resource that is lacking: wanted and free. Nothing when nodes are not known."""
    if seen.rooms is None:
        return ""
    wishes = [pod.node_selector.items() for pod in pods]
    nodes = [
        node for node in seen.rooms.nodes if any(wish <= node.labels.items() for wish in wishes)
    ]
    asked = [pod.requests for pod in pods]
    return "; ".join(compared(each, asked, nodes, seen.rooms.exact) for each in lacking)


def _of_workloads(seen: Observed) -> Iterator[Finding]:
    for workload in seen.workloads:
        if workload.trouble:
            yield refused(f"{workload.kind} {workload.name}", workload.trouble)


def no_gangs(api: str) -> Finding:
    return Finding(
        "GangUnknown",
        f"the cluster has no PodGroups of {api}, so no pod is started: switch that API on, or "
        "delete the job and create it anew with another gang.kind",
    )


def refused(what: str, message: str) -> Finding:
    """The API server did not take an object."""
    said = shortened(message)
    if "exceeded quota" in message:
        return Finding(
            "QuotaExceeded", f"{what}: {said}; raise the quota, or ask for fewer or smaller pods"
        )
    if "violates PodSecurity" in message:
        return Finding(
            "PodSecurity", f"{what}: {said}; mend roles.*.template, or the namespace's level"
        )
    return Finding("CreateFailed", f"{what}: {said}")


def last_words(pod: Pod) -> str:
    """The last line that a container of the pod said, shortened."""
    if pod.ended is None:
        return ""
    lines = [line.strip() for line in pod.ended.message.splitlines() if line.strip()]
    return shortened(lines[-1]) if lines else pod.ended.reason


def shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
