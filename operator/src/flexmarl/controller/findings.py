"""What stands in a job's way, from the state of its pods: reasons and sentences; pure.

A reason is one word for machines; the sentence names the object and says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flexmarl.controller import preparation
from flexmarl.controller.capacity import compared
from flexmarl.controller.names import EXPERIENCE, ORCHESTRATOR
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.controller.owners import controller_of
from flexmarl.runtime.process import HOPELESS

PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
UNCONFIGURED = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
RESTARTING = {"CrashLoopBackOff"}
GANG = "pod group is unschedulable"
"""What Kubernetes' own gang scheduling says of pods that wait for others."""
LONGEST = 400
"""Of the words of others in a sentence."""
STORE = "StoreUnreachable"
STORE_WORDS = ("the store", "store.")
"""With which the last words of the service in front of the store begin when that is at fault."""
STUCK, STUCK_SECONDS = "PodStuck", 60.0
"""After a pod should have been gone."""
INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")


def find(seen: Observed) -> list[Finding]:
    """All of it, what matters most first; one finding per reason."""
    found: dict[str, Finding] = {}
    of_pods = (*preparation.findings(seen.pods), *_of_pods(seen))
    for finding in (*_of_spec(seen), *seen.findings, *of_pods, *_of_workloads(seen)):
        found.setdefault(finding.reason, finding)
    return sorted(found.values(), key=lambda finding: not finding.fatal)


def _of_spec(seen: Observed) -> Iterator[Finding]:
    """What an earlier version has let run is not ended by a rule of this one."""
    if seen.problems:
        yield Finding("InvalidSpec", "; ".join(seen.problems), fatal=not seen.ran)


def _of_pods(seen: Observed) -> Iterator[Finding]:
    if lost := [pod for pod in seen.pods if 0 < pod.gone_by < seen.now - STUCK_SECONDS]:
        yield _lost(lost)
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
        elif pod.unmounted:
            yield _unmounted(pod)
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


def _lost(pods: Sequence[Pod]) -> Finding:
    """Nothing is made in place of a pod of which its node does not say that it has ended."""
    names = _named(pods)
    node = next((pod.node for pod in pods if pod.node), "")
    if not node:
        return Finding(STUCK, f"{names} should be gone and is not: see its finalizers")
    return Finding(
        STUCK,
        f"{names} should be gone, but {node} does not say so; if that node is lost, delete its "
        "Node object or taint it node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, else "
        "see its kubelet",
    )


def _unmounted(pod: Pod) -> Finding:
    said = shortened(pod.unmounted)
    if "Multi-Attach" in said:
        what = "a claim that is not ReadWriteMany serves one node: have these pods on one node, or "
        what += "create the job anew with a claim of accessMode ReadWriteMany (spec.checkpoint, "
        what += "spec.cache)"
    elif "not found" in said:
        what = "create what is not found"
    else:
        what = "see the volume, its driver, and the events of the pod"
    return Finding("VolumeNotMounted", f"{pod.name} has no volume yet: {said}; {what}")


def _store(pod: Pod) -> Finding | None:
    """Whether the service in front of the store ended for want of it, and is not back."""
    words = last_words(pod)
    if pod.role != EXPERIENCE or pod.ready or not words.startswith(STORE_WORDS):
        return None
    if pod.ended is not None and pod.ended.exit_code == HOPELESS:
        return None
    return Finding(
        STORE,
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
    said, who = shortened(message), _named(pods)
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


def _named(pods: Sequence[Pod]) -> str:
    more = f" and {len(pods) - 3} more" if len(pods) > 3 else ""
    return ", ".join(sorted(pod.name for pod in pods)[:3]) + more


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


def name_taken(what: str, found: Mapping[str, Any], job: str) -> Finding:
    """`found` has the name of an object that `job` needs, and is not its own."""
    owner = controller_of(found)
    mine = (owner.get("kind"), owner.get("name")) == ("MARLJob", job)
    if mine or "deletionTimestamp" in found["metadata"]:
        says = "is still there, of an earlier job of this name; it waits until that is gone"
    elif owner:
        says = f"is there already and belongs to {owner['kind']} {owner['name']}; delete that, or "
        says += "give this job another name"
    else:
        says = "is there already and belongs to nobody; delete it, or give the job another name"
    return Finding("NameTaken", f"{what} {says}")


def claim_differs(name: str, lacks: str) -> Finding:
    return Finding(
        "ClaimDiffers",
        f"PersistentVolumeClaim {name} was kept of an earlier job and {lacks}; delete it, or "
        f"create the job anew with spec.checkpoint.claim.name: {name}, which takes it as it is",
    )


def store_away(message: str) -> Finding:
    """Of the store that all jobs share."""
    return Finding(
        STORE,
        f"the store of the installation does not admit the job ({shortened(message)}); see whether "
        "its pod runs and its Secret is right",
    )


def unavailable(message: str) -> Finding:
    """The API server did not do what it may do later."""
    said = shortened(message)
    return Finding("APIUnavailable", f"the job's objects cannot be written: {said}; tried again")


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
