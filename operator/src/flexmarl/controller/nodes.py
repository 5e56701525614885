"""Pods that their node keeps, loses or does not take: reasons and sentences; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexmarl.controller.observed import Finding, Node, Observed, Pod
from flexmarl.controller.words import named, shortened

STUCK, STUCK_SECONDS = "PodStuck", 60.0
"""After a pod should have been gone."""
UNREADY_SECONDS = 15.0
"""For so long a pod on a node may be unready before that is asked for."""
RECENT_SECONDS = 600.0
"""For so long it is told why a pod was failed that was not replaced by one that is ready."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
RELEASE = f"delete its Node object or taint it {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
"""What makes Kubernetes remove a lost node's pods, though nobody says that they have ended."""


def node(manifest: Mapping[str, Any]) -> Node:
    conditions = manifest.get("status", {}).get("conditions", ())
    ready: Mapping[str, Any] = next((one for one in conditions if one["type"] == "Ready"), {})
    taints = manifest.get("spec", {}).get("taints", ())
    parts = (str(ready.get("reason", "")), str(ready.get("message", "")))
    return Node(
        ready=ready.get("status", "True") == "True",
        says=shortened(": ".join(part for part in parts if part)),
        released=any(one.get("key") == OUT_OF_SERVICE for one in taints),
    )


def doubtful(seen: Observed) -> set[str]:
    """Nodes that are to be asked for: of pods that are unready, or should be gone, for long."""
    return {
        pod.node
        for pod in seen.pods
        if pod.node and (_overdue(pod, seen) or 0 < pod.unready_since < seen.now - UNREADY_SECONDS)
    }


def of_nodes(seen: Observed) -> Iterator[Finding]:
    """Pods that should be gone, and pods that cannot run because their node does not."""
    if overdue := [pod for pod in seen.pods if _overdue(pod, seen)]:
        yield _stuck(overdue, seen)
    there: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if pod.node in seen.nodes and pod.unready_since and not _overdue(pod, seen):
            there.setdefault(pod.node, []).append(pod)
    for name, pods in sorted(there.items()):
        if (found := _down(name, seen.nodes[name], pods)) is not None:
            yield found


def of_ends(seen: Observed) -> Iterator[Finding]:
    """Pods that were taken off their node, or never let onto it, until others are ready."""
    for pod in seen.pods:
        if pod.deleting and pod.disruption == "PreemptionByScheduler":
            yield Finding(
                "Preempted",
                f"{pod.name} gives way to a pod of higher priority and is made anew where there is "
                "room; give the roles a priorityClassName in their templates if they should not",
            )
        elif pod.failure and seen.now - pod.failed_at < RECENT_SECONDS and _lacks(pod, seen):
            yield _failed(pod)


def _overdue(pod: Pod, seen: Observed) -> bool:
    return 0 < pod.gone_by < seen.now - STUCK_SECONDS


def _stuck(pods: Sequence[Pod], seen: Observed) -> Finding:
    """Nothing is made in place of a pod of which its node does not say that it has ended."""
    names = named(pods)
    name = next((pod.node for pod in pods if pod.node), "")
    if not name:
        return Finding(STUCK, f"{names} should be gone and is not: see its finalizers")
    state = seen.nodes.get(name, Node())
    if state is None or state.released:
        says = "is no node any more" if state is None else "is out of service"
        return Finding(
            STUCK,
            f"{names} should be gone, for {name} {says}, and Kubernetes has not removed it: see "
            "its finalizers, and whether the cluster's kube-controller-manager runs",
        )
    doubt = f" ({state.says})" if not state.ready and state.says else ""
    return Finding(
        STUCK,
        f"{names} should be gone, but {name}{doubt} does not say so; if that node is lost, "
        f"{RELEASE}, else see its kubelet",
    )


def _down(name: str, state: Node | None, pods: Sequence[Pod]) -> Finding | None:
    then = "Kubernetes removes what was there within a minute or two, and it is made anew"
    if state is None:
        return Finding("NodeLost", f"{named(pods)}: {name} is no node any more; {then}")
    if state.released:
        return Finding("NodeLost", f"{named(pods)}: {name} is out of service; {then}")
    if state.ready:
        return None
    says = f" ({state.says})" if state.says else ""
    return Finding(
        "NodeNotReady",
        f"{named(pods)}: {name} is not ready{says}; if it stays so, pods are told to leave it "
        "after 300 s, or what their tolerations say, and are made anew once it says that they "
        f"ended; if it is lost, {RELEASE}, and they are made anew at once",
    )


def _lacks(pod: Pod, seen: Observed) -> bool:
    """Whether there are not yet as many that are ready as there should be of its kind."""
    kind = pod.role, pod.pool
    ready = sum(
        one.ready and not one.deleting and (one.role, one.pool) == kind for one in seen.pods
    )
    wanted = sum(one.replicas for one in seen.workloads if (one.role, one.pool) == kind)
    return ready < wanted


def _failed(pod: Pod) -> Finding:
    reason, said = pod.failure, shortened(pod.failure_message)
    words = f"{reason}: {said}" if said else reason
    if reason == "Evicted":
        return Finding("Evicted", f"{pod.name} was evicted: {said}; {_advice(said)}")
    if reason == "UnexpectedAdmissionError":
        what = "see the device plugins of that node"
    elif reason.startswith("OutOf"):
        what = "another pod was there first; it is made anew"
    else:
        what = "it is made anew"
    return Finding("PodRejected", f"{pod.node or 'a node'} refused {pod.name} ({words}); {what}")


def _advice(said: str) -> str:
    if '"shm"' in said:
        return "create the job anew with a larger spec.shm.size"
    if "phemeral" in said or "EmptyDir" in said or "emptyDir" in said:
        return (
            "let what is fetched lie in a claim (spec.cache.claim), or give the role's template "
            "more ephemeral-storage"
        )
    return "give the role's template requests that hold what it needs"
