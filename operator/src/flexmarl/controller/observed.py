"""What the controller knows of a job at one moment; pure. `seeing` makes it of the API server's
objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flexmarl.contracts.preparation import Report
from flexmarl.controller.affinity import Terms
from flexmarl.controller.capacity import Amounts, Rooms


class JobState(StrEnum):
    """Of the orchestrator's Job."""

    ABSENT = "absent"
    """Or complete, for fewer steps than are wanted by now."""
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
    container: str = ""
    memory: str = ""
    """Its limit; empty: it has none."""
    unanswered: int = 0
    """Seconds that its startup probe gave it, if it lived for so long and never answered."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Of one container, over its restarts."""

    all: int = 0
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One that has pods of the job."""

    ready: bool = True
    says: str = ""
    """Why it is not, in the words of its condition."""
    released: bool = False
    """Out of service: somebody has said that nothing runs there any more."""


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
    """Of its containers after crashes, and 1 more once the pod itself has failed by one."""
    crashes: int = 0
    """The most of one of its containers."""
    ends: Mapping[str, Ends] = field(default_factory=dict)
    """By container."""
    waiting: str = ""
    """Reason why a container does not start."""
    waiting_message: str = ""
    unschedulable: str = ""
    unscheduled_since: float = 0
    """Since when no scheduler has said anything of it; 0: one has."""
    scheduler: str = ""
    claims: tuple[str, ...] = ()
    requests: Amounts = field(default_factory=dict)
    """What it asks of a node; known of a pod that finds none."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    affinity: Terms | None = None
    """What it requires of nodes, known of a pod that finds none."""
    ended: Ended | None = None
    prepared: bool = True
    """Its first container has ended well."""
    report: Report | None = None
    """What it said last; without one it counts as any other container."""
    disrupted: bool = False
    """Failed by no fault of its own: evicted, preempted, its node gone."""
    disruption: str = ""
    """How, as a reason."""
    failure: str = ""
    """Why its node has failed it, or never took it, as a reason; empty: its containers failed."""
    failure_message: str = ""
    failed_at: float = 0
    unready_since: float = 0
    """Since when it is on a node and not ready; 0: it is, or has ended."""
    preparing_since: float = 0
    """Since when its first container runs; 0: it does not."""
    gone_by: float = 0
    """When it should be gone, its grace over; 0: it is not being deleted."""
    unstarted_since: float = 0
    """Since when it has a node on which nothing is set up for it; 0: it has none, or all is."""
    unmounted: str = ""
    """Why that is, in the words of its events."""


@dataclass(frozen=True, slots=True)
class Workload:
    kind: str
    name: str
    role: str
    replicas: int = 0
    trouble: str = ""
    """What keeps it from making pods, in the API server's words."""
    deleting: bool = False
    uid: str = ""
    lacks: bool = False
    """Pods, which may be on their way."""
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
    store_away: str = ""
    """Why the store does not answer it; empty: it does."""
    store_full: tuple[int, int] | None = None
    """MiB that are taken, and all, once groups have waited for room in the store for long."""


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
    unknown: tuple[str, ...] = ()
    """Fields of it that were left out."""
    later: tuple[str, ...] = ()
    """Values of it that a later release has to understand."""
    own_store: bool = False
    """It names one; else it uses the installation's."""
    ran: bool = False
    """All its pods were ready before."""
    orchestrator: JobState = JobState.ABSENT
    orchestrator_reason: str = ""
    pods: tuple[Pod, ...] = ()
    workloads: tuple[Workload, ...] = ()
    progress: Progress | None = None
    silence: str = ""
    """Why its orchestrator, which is ready, has not answered the controller for long."""
    findings: tuple[Finding, ...] = ()
    """Of what could not be applied."""
    rooms: Rooms | None = None
    """Of the nodes; None: nobody needs it, or the controller may not know."""
    nodes: Mapping[str, Node | None] = field(default_factory=dict)
    """Those that were asked for; None: there is none of that name."""
    fetches: Mapping[str, str] = field(default_factory=dict)
    """Uid of a pod that is being prepared -> how far it is."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Role -> how often one container may be restarted after a crash."""

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
