"""The MARLJob: the one place its schema is written down.

Users write these models as YAML, `flexmarl validate` reports against them, and every process reads
the same file through them. Fields are camelCase outside, snake_case inside. Rules that join several
fields live in `contracts.rules`; reading files and reporting errors in `contracts.reading`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from flexmarl.contracts.api import API_VERSION
from flexmarl.contracts.base import (
    Entrypoint,
    Model,
    Name,
    NonNegative,
    ObjectName,
    Positive,
    Seconds,
)
from flexmarl.contracts.cluster import (
    CONTROLLER,
    BalancingSpec,
    CacheSpec,
    ClaimSpec,
    GangSpec,
    GitSpec,
    NetworkSpec,
    PodTemplate,
    PoolRole,
    PoolSpec,
    SecretKey,
    ShmSpec,
)
from flexmarl.contracts.pipeline import BatchSpec, PipelineSpec
from flexmarl.contracts.policy import PolicySpec
from flexmarl.contracts.sources import DataSpec, EvalSpec


class SamplingSpec(Model):
    max_tokens: Positive = 256
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    """0: off."""


class AgentSpec(Model):
    """One role in the team; agents that name the same policy share weights."""

    name: Name
    policy: Name
    system_prompt: str | None = None
    sampling: SamplingSpec = SamplingSpec()


class WorkflowSpec(Model):
    """Who speaks when: a built-in name, or the entry point of one's own class."""

    name: str | None = None
    entrypoint: Entrypoint | None = None
    config: dict[str, Any] = {}
    participants: str | None = None
    """Column of a task that lists the agents it needs: its episodes wait for their policies only.
    None: every agent takes part in every task."""
    timeout: Seconds = 600
    """Of one episode."""


class RewardSpec(Model):
    name: str | None = None
    entrypoint: Entrypoint | None = None
    config: dict[str, Any] = {}
    timeout: Seconds = 30
    """Of one call. Code that never lets go of the interpreter (C code) cannot be stopped by it: the
    worker then ends, with the line as its last words, and is restarted within its policy."""


class CodeSpec(Model):
    """The user's own Python, importable in the rollout worker only."""

    path: str = "."
    """Folder, relative to the job file."""
    image: Annotated[str, Field(max_length=512)] | None = None
    """On a cluster: the workers' image, one made from ours with the code installed."""
    config_map: ObjectName | None = None
    """On a cluster: a ConfigMap whose entries are the files beside the job file. `flexmarl apply`
    makes one."""
    git: GitSpec | None = None
    """On a cluster: a repository; its root is what `path` counts from."""


class Transport(StrEnum):
    AUTO = "auto"
    SHM = "shm"
    TCP = "tcp"


class WeightSyncSpec(Model):
    transport: Transport = Transport.AUTO
    """auto: shared memory where the copy lies in the same pod, else TCP."""
    check: bool = True
    """Compare checksums of trainer and engine after every load."""


class StoreSpec(Model):
    url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://.+")] | None = None
    """A Redis >= 7 or Valkey >= 8; none: an embedded Valkey."""
    ca_file: str | None = None
    """Certificates (PEM) of who signed that of a `rediss://` server, relative to the job file; by
    default the system's."""
    max_memory_mib: Positive = 512
    """Of the embedded Valkey. A whole step must fit, else the job ends and says so."""
    secret_ref: SecretKey | None = None
    """On a cluster: holds the URL of the job's own server. None: that of the installation."""


class CheckpointSpec(Model):
    uri: Annotated[str, Field(pattern=r"^file://.+")] | None = None
    """By default `checkpoints/` of the run. On one machine only."""
    every_steps: Positive = 10
    keep: Positive = 2
    claim: ClaimSpec = ClaimSpec()
    """On a cluster: where it lies."""


class RestartPolicy(Model):
    max: NonNegative = 3
    backoff: Seconds = 1.0
    """Before the first restart; doubled each time, at most 30 s. On a cluster Kubernetes' own
    counts instead: from 10 s on."""


class RoleSpec(Model):
    restart_policy: RestartPolicy = RestartPolicy()


STARTUP_SECONDS = 1800


class PodRoleSpec(RoleSpec):
    template: PodTemplate | None = None
    """On a cluster: laid over the role's pod template."""
    startup_seconds: Annotated[int, Field(ge=1, le=86400)] = STARTUP_SECONDS
    """On a cluster: so long its process may take from its start until it answers, for example to
    load a model; then it is ended, and started again within its policy."""


class ReplicatedRoleSpec(PodRoleSpec):
    replicas: Annotated[int, Field(ge=1, le=256)] = 1


class RolesSpec(Model):
    orchestrator: PodRoleSpec = PodRoleSpec()
    worker: ReplicatedRoleSpec = ReplicatedRoleSpec()
    engine: ReplicatedRoleSpec = ReplicatedRoleSpec()
    """Replicas of each policy's engine."""
    trainer: ReplicatedRoleSpec = ReplicatedRoleSpec()
    """Replicas are training slots; fewer than policies: they take turns."""
    experience: PodRoleSpec = PodRoleSpec()
    weights: RoleSpec = RoleSpec()
    store: RoleSpec = RoleSpec()


class MARLJobSpec(Model):
    """What the user asks for."""

    policies: Annotated[list[PolicySpec], Field(min_length=1, max_length=64)]
    agents: Annotated[list[AgentSpec], Field(min_length=1, max_length=64)]
    workflow: WorkflowSpec
    code: CodeSpec | None = None
    data: DataSpec
    reward: RewardSpec | None = None
    """None: the workflow returns the rewards itself."""
    solved_reward: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """An episode counts as right for an agent from this reward on: in accuracies, and for
    `pipeline.difficulty`. Rewards that never come near it, or hardly fall below, tell neither."""
    eval: EvalSpec | None = None
    steps: Positive
    seed: NonNegative = 0
    """Of every random choice."""
    batch: BatchSpec = BatchSpec()
    pipeline: PipelineSpec = PipelineSpec()
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    store: StoreSpec = StoreSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    roles: RolesSpec = RolesSpec()
    pools: Annotated[list[PoolSpec], Field(max_length=16)] = []
    balancing: BalancingSpec = BalancingSpec()
    suspend: bool = False
    """Save the last finished step and delete every pod; false again: go on from there."""
    suspend_timeout: Annotated[int, Field(ge=1, le=86400)] = 300
    """Seconds for that step to be saved; after them the pods go anyway, and the job goes on from
    its last checkpoint."""
    managed_by: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-zA-Z0-9_.-]+$", max_length=63)] = (
        CONTROLLER
    )
    """Another controller's name: this one leaves the job alone."""
    active_deadline_seconds: Positive | None = None
    """From the first time that it is Running, without the time from a suspension until it is so
    again; after them the job fails."""
    ttl_seconds_after_finished: NonNegative | None = None
    """The finished job is deleted after so many seconds; none: never."""
    cache: CacheSpec = CacheSpec()
    shm: ShmSpec = ShmSpec()
    network: NetworkSpec = NetworkSpec()
    gang: GangSpec = GangSpec()

    def policy(self, name: str) -> PolicySpec:
        return next(policy for policy in self.policies if policy.name == name)

    def agents_of(self, policy: str) -> list[AgentSpec]:
        return [agent for agent in self.agents if agent.policy == policy]

    def pool_of(self, policy: str, role: PoolRole) -> PoolSpec | None:
        """Which pool of that role the policy uses; None: it has pods of its own."""
        named = self.policy(policy).pools
        return next((pool for pool in self.pools if pool.name in named and pool.role is role), None)

    @property
    def engine_pools(self) -> dict[str, list[str]]:
        """Pools of engines -> the policies that share them."""
        found: dict[str, list[str]] = {}
        for policy in self.local_policies:
            if pool := self.pool_of(policy, PoolRole.ENGINE):
                found.setdefault(pool.name, []).append(policy)
        return found

    @property
    def trained_policies(self) -> list[str]:
        return [policy.name for policy in self.policies if policy.trained]

    @property
    def local_policies(self) -> list[str]:
        """Those that an engine of ours serves."""
        return [policy.name for policy in self.policies if not policy.external]


class Metadata(Model):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="ignore", frozen=True
    )
    name: Name
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class MARLJob(Model):
    api_version: Literal["flexmarl.io/v1alpha1"] = API_VERSION
    kind: Literal["MARLJob"] = "MARLJob"
    metadata: Metadata
    spec: MARLJobSpec
