"""Pods that get no node: reasons and sentences; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from flexmarl.controller.capacity import admits, compared
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.controller.words import named, shortened

GANG = "pod group is unschedulable"
"""What Kubernetes' own gang scheduling says of pods that wait for others."""
INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)|Too many (pods)")
TAINT = re.compile(r"untolerated taint\(?s?\)? \{([^}:]*)")
KUBERNETES = "node.kubernetes.io/"
"""How taints begin that Kubernetes gives to nodes that are unwell."""
CLAIM = (
    "create the claim that the job names in a pvc:// URI, spec.cache or spec.checkpoint; for the "
    "one that it makes, name a StorageClass in spec.checkpoint.claim, or give the cluster a "
    "default one"
)
GATED = "SchedulingGated"
"""Somebody means it: whatever else is wrong is told before it."""
UNSEEN_SECONDS = 60.0
"""For so long a scheduler may say nothing of a pod."""


def of_places(seen: Observed) -> Iterator[Finding]:
    stuck: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if pod.unschedulable and not pod.deleting:
            stuck.setdefault(pod.unschedulable, []).append(pod)
    gang = [pod for message in [*stuck] if GANG in message for pod in stuck.pop(message)]
    told: dict[str, list[str]] = {}
    for message, pods in stuck.items():
        found = _unschedulable(message, pods, gang, seen)
        told.setdefault(found.reason, []).append(found.message)
    for reason, messages in told.items():
        yield Finding(reason, "; ".join(messages))
    if gang and not stuck:
        yield Finding("GangWaiting", f"{len(gang)} pods start together once there is room for all")
    unseen: dict[str, list[Pod]] = {}
    for pod in seen.pods:
        if 0 < pod.unscheduled_since < seen.now - UNSEEN_SECONDS and not pod.deleting:
            unseen.setdefault(pod.scheduler, []).append(pod)
    for scheduler, pods in unseen.items():
        yield _unseen(scheduler, pods)


def _unseen(scheduler: str, pods: Sequence[Pod]) -> Finding:
    claims = sorted({claim for pod in pods for claim in pod.claims})
    volumes = f", and whether the volumes of {', '.join(claims)} can be made" if claims else ""
    return Finding(
        "NotScheduled",
        f"{named(pods)}: the scheduler {scheduler} has said nothing for {UNSEEN_SECONDS:.0f} s; "
        f"see whether it runs (schedulerName of the role's template){volumes}",
    )


def _unschedulable(message: str, pods: list[Pod], gang: Sequence[Pod], seen: Observed) -> Finding:
    """`gang`: those that wait for these."""
    said, who = shortened(message), named(pods)
    lacking = sorted({one or other for one, other in INSUFFICIENT.findall(message)})
    taints = TAINT.findall(message)
    mismatch = "affinity" in message or "selector" in message
    match message:
        case _ if "scheduling gates" in message:
            reason, says = (
                GATED,
                f"{who}: {said}; whoever set them, a queue, lets it go",
            )
        case _ if "persistentvolumeclaim" in message.lower() or "binding volumes" in message:
            reason, says = "ClaimPending", f"{who}: {said}; {CLAIM}"
        case _ if lacking:
            reason, says = "InsufficientCapacity", _lacking(lacking, pods, gang, seen, said)
        case _ if "volume node affinity conflict" in message:
            reason = "VolumeElsewhere"
            says = f"{who}: no node that may run it has the volume of {_claims(pods)} ({said}); "
            says += "mend nodeSelector, or name a claim that can be used there"
        case _ if "free ports" in message:
            reason = "PortsTaken"
            says = f"{who}: no node has its ports left ({said}); pods on their nodes' network need "
            says += "a node each: add nodes, or lower the pool's min or the role's replicas"
        case _ if taints and not mismatch and all(one.startswith(KUBERNETES) for one in taints):
            reason = "NodesUnavailable"
            says = f"{who}: the nodes that may run it take no pods now ({said}); see kubectl "
            says += "describe node, or add nodes"
        case _ if mismatch or "taint" in message:
            reason = "NoMatchingNode"
            says = f"no node may run {who} ({said}); mend nodeSelector or tolerations of the pool, "
            says += "or label the nodes"
        case _:
            reason = "Unschedulable"
            says = f"{who}: {said}; mend the template of the role or pool, or the nodes"
    return Finding(reason, says)


def _lacking(
    lacking: Sequence[str], pods: Sequence[Pod], gang: Sequence[Pod], seen: Observed, said: str
) -> str:
    like = {(pod.role, pod.pool) for pod in pods}
    placed = sum(bool(pod.node) for pod in seen.pods if (pod.role, pod.pool) in like)
    wanted = len(pods) + len(gang) + placed
    less = (
        "suspend the job, lower the pool's min and resume it: a gang starts as a whole"
        if gang
        else "lower the pool's min or the role's replicas"
    )
    return (
        f"{wanted} pods wanted, {placed} placed: no node has enough {', '.join(lacking)} left for "
        f"{named(pods)} ({_numbers(lacking, pods, seen) or said}); free or add nodes, or {less}"
    )


def _claims(pods: Iterable[Pod]) -> str:
    return ", ".join(sorted({claim for pod in pods for claim in pod.claims}))


def _numbers(lacking: Iterable[str], pods: Sequence[Pod], seen: Observed) -> str:
    """Of each resource that is lacking: wanted and free. Nothing when nodes are not known."""
    if seen.rooms is None:
        return ""
    nodes = [
        node
        for node in seen.rooms.nodes
        if any(admits(node, one.node_selector, one.tolerations, one.affinity) for one in pods)
    ]
    asked = [{"pods": 1.0, **pod.requests} for pod in pods]
    return "; ".join(compared(each, asked, nodes, seen.rooms.exact) for each in lacking)
