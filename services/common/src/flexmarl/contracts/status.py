"""What the controller says of a MARLJob: for who reads it with `kubectl explain`."""

from __future__ import annotations

from flexmarl.contracts.base import Model


class JobCondition(Model):
    """As conditions are everywhere in Kubernetes."""

    type: str
    """Accepted, ModelsFetched, PreflightPassed, PodsReady, StoreReady, Suspended, Complete or
    Failed."""
    status: str
    """True or False."""
    reason: str
    """One word, for machines."""
    message: str
    """What it is, and what to do about it."""
    last_transition_time: str
    """Since when the status is what it is."""


class JobFailure(Model):
    """Who ended a job that failed, as far as it is known."""

    role: str | None = None
    pod: str | None = None
    exit_code: int | None = None
    message: str


class PolicyStatus(Model):
    name: str
    engines: int
    """That serve it."""
    version: int | None = None
    """Of its weights: steps that it was trained for."""


class PoolStatus(Model):
    name: str
    ready: int
    """Pods."""
    wanted: int
    max: int


class ContainerEnds(Model):
    """Those that are counted."""

    all: int
    crashes: int
    """Of them: the others waited for what they need, or their node was at fault."""


class JobStatus(Model):
    """Where the job is, written by the controller alone."""

    phase: str
    """Pending, Starting, Running, Suspending, Suspended, Complete or Failed."""
    reason: str
    """One word, for machines: why it is in that phase, or what stands in its way."""
    message: str
    """The same in a sentence that says what to do about it."""
    observed_generation: int
    """Of the spec that this is about."""
    conditions: list[JobCondition]
    start_time: str | None = None
    """Of the first Running: from then on activeDeadlineSeconds count."""
    paused_seconds: int | None = None
    """Of them, those that were spent suspended."""
    paused_since: str | None = None
    suspending_since: str | None = None
    completion_time: str | None = None
    step: int | None = None
    """Steps that are finished."""
    steps: int | None = None
    progress: str | None = None
    """Both, as in 3/40."""
    reward: str | None = None
    """Mean of the last step."""
    tokens_per_second: str | None = None
    """Sampled in the last step."""
    policies: list[PolicyStatus] | None = None
    pools: list[PoolStatus] | None = None
    failure: JobFailure | None = None
    restarts: dict[str, int] | None = None
    """By role, of all pods there ever were."""
    restarts_total: int = 0
    """Of them all. What only waits to begin, or is started elsewhere, is no restart."""
    restarts_seen: dict[str, int] | None = None
    """By uid of a living pod: those that are counted."""
    ends: dict[str, ContainerEnds] | None = None
    """By uid of a living pod and name of a container."""
