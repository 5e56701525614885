"""The fields of a MARLJob that mean something on a cluster only; `contracts.job` places them."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from flexmarl.contracts.base import Model, Name, NonNegative, ObjectName, Quantity

PodTemplate = Annotated[
    dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A part of a pod template, `metadata` and `spec`, laid over the one that the controller makes:
containers by name, volumes and env as well, but these as a whole. The main container is `main`."""


class PoolRole(StrEnum):
    """A pod holds an engine or a training slot; pools of both may be on the same nodes."""

    ENGINE = "engine"
    TRAINER = "trainer"


LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_KEY_LENGTH = 317
"""A prefix of 253, a slash and a name of 63."""
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]
RESOURCE = r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$"


class Toleration(Model):
    """As in a pod."""

    key: Annotated[str, Field(pattern=LABEL_KEY, max_length=LABEL_KEY_LENGTH)] | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class PoolSpec(Model):
    """Pods of one shape. Policies name the pools whose engines and training slots they may use."""

    name: Name
    role: PoolRole
    gpus: NonNegative = 0
    """Of each pod."""
    gpu_resource: Annotated[str, Field(pattern=RESOURCE, max_length=253)] = "nvidia.com/gpu"
    """What the node calls them."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = {}
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    min: Annotated[int, Field(ge=1, le=256)] = 1
    """Pods, at least. On one machine: processes."""
    max: Annotated[int, Field(ge=1, le=256)] = 1
    """Pods, at most; between the two as many as the orchestrator wants."""
    template: PodTemplate | None = None


class BalancingSpec(Model):
    """When an engine of a pool goes to another policy, and when a pool grows or shrinks."""

    delta: Annotated[int, Field(ge=1, le=100000)] = 5
    """Turns that wait or are played, per engine, by which two policies must differ."""
    hysteresis_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """For how long. Where policies outnumber engines: how long one keeps an engine while another
    waits for it."""
    turns_per_engine: Annotated[int, Field(ge=1, le=100000)] = 64
    """A pool grows, up to its max, until each of its engines has at most so many."""
    shrink_seconds: Annotated[float, Field(ge=0, le=86400)] = 300.0
    """It gives up engines, down to its min, only after it has wanted no more for so long."""


class SecretKey(Model):
    """An entry of a Secret in the job's namespace."""

    name: ObjectName
    key: Annotated[str, Field(min_length=1, max_length=253)] = "url"


class SecretRef(Model):
    """A Secret in the job's namespace. Its entries are the environment of what fetches, and of
    nothing else: HF_TOKEN, HF_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL,
    AWS_REGION; of git username and password."""

    name: ObjectName


class GitSpec(Model):
    """One commit of a repository, read by HTTP(S) when a worker's pod starts."""

    url: Annotated[str, Field(pattern=r"^https?://[^@\s/]+/[^@\s]+$", max_length=1024)]
    ref: Annotated[str, Field(pattern=r"^[^@\s]*$", max_length=256)] = ""
    """A branch, a tag or a whole commit hash; by default the default branch. Branches move: workers
    that start later get what they then point to."""
    secret_ref: SecretRef | None = None
    """Holds username and password (or a token as password), as Secrets of the type
    kubernetes.io/basic-auth do."""


class CacheSpec(Model):
    """Where pods keep what they fetch."""

    claim: ObjectName | None = None
    """A claim that exists: what it holds is not fetched again, by no pod and no later job. It has
    to be ReadWriteMany when pods are on several nodes. None: each pod fetches its own."""


class ClaimSpec(Model):
    """The volume of checkpoints, metrics and logs of a run."""

    name: ObjectName | None = None
    """A claim that exists; none: one is made, `JOB-run`."""
    size: Quantity | None = None
    """Of the one that is made; 10Gi by default."""
    storage_class: ObjectName | None = None
    """Of the one that is made; the cluster's default by default."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] | None = None
    """Of the one that is made. ReadWriteOnce by default, which serves one node: orchestrator and
    trainers are put beside each other where there is room. For trainers on several nodes it has to
    be ReadWriteMany."""
    retain: bool = True
    """The claim that is made outlives the job."""


class ShmSpec(Model):
    """Shared memory of each trainer pod: the states of its policies live there."""

    size: Quantity = "1Gi"
    """Counts as memory of the pod, and is asked for with it."""


class NetworkSpec(Model):
    """Of the pods that hold GPUs or train: trainers, and engines of pools with gpus."""

    host_network: bool = False
    """They share their node's network, ports 7070, 7071 and 9090 included: one such pod per node.
    Pods then stand beyond NetworkPolicies, and namespaces of the baseline profile refuse them."""
    rdma_resource: Annotated[str, Field(pattern=RESOURCE, max_length=253)] | None = None
    """What the node calls its RDMA devices, `rdma/hca` for example: each pod gets one. Weights of
    ours go by shared memory and TCP; what uses it is what a pod's template adds."""


class GangKind(StrEnum):
    """Whose gang scheduling starts all pods of a job or none."""

    NONE = "none"
    NATIVE = "native"
    """Kubernetes' own (scheduling.k8s.io/v1alpha2, alpha in 1.36)."""
    COSCHEDULING = "coscheduling"
    """The coscheduling plugin (scheduling.x-k8s.io); rendered, never tried."""
    VOLCANO = "volcano"
    """Volcano (scheduling.volcano.sh); rendered, never tried."""


class GangSpec(Model):
    kind: GangKind = GangKind.NONE


CONTROLLER = "flexmarl.io/controller"
"""Who takes care of a job that does not say `managedBy`."""
