"""What the pods of each role read by URI; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flexmarl.contracts.cluster import SecretRef
from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.policy import EngineKind
from flexmarl.contracts.sources import DataSpec
from flexmarl.controller.names import ENGINE, ORCHESTRATOR, TRAINER, WORKER

FETCHED = ("hf://", "s3://")
CLAIM = "pvc://"
CLAIMS_DIR = "/claims"
"""Where `flexmarl.fetch` looks for the claims, each under its name."""


@dataclass(frozen=True, slots=True)
class Need:
    uri: str
    part: str
    """`model`, `tokenizer` or `all`: which of its files."""
    secret: SecretRef | None = field(default=None, compare=False)


def needs(spec: MARLJobSpec, role: str, policies: Sequence[str]) -> list[Need]:
    """Of pods that hold the models of `policies`; each once, a model also for its tokenizer."""
    found = list(dict.fromkeys(_needs(spec, role, policies)))
    models = {need.uri for need in found if need.part == "model"}
    return [need for need in found if need.part != "tokenizer" or need.uri not in models]


def claims(needed: Iterable[Need]) -> list[str]:
    """Names of the claims to be mounted."""
    names = (need.uri.removeprefix(CLAIM).partition("/")[0] for need in needed if _claimed(need))
    return list(dict.fromkeys(names))


def fetched(needed: Iterable[Need]) -> list[Need]:
    return [need for need in needed if need.uri.startswith(FETCHED)]


def mounted(needed: Iterable[Need]) -> list[str]:
    return [need.uri for need in needed if _claimed(need)]


def _claimed(need: Need) -> bool:
    return need.uri.startswith(CLAIM)


def _needs(spec: MARLJobSpec, role: str, policies: Sequence[str]) -> Iterator[Need]:
    if role == ORCHESTRATOR:
        yield _data(spec.data)
        if spec.eval is not None:
            yield _data(spec.eval.data)
    if role not in (ENGINE, TRAINER, WORKER):
        return
    for name in policies:
        policy = spec.policy(name)
        if policy.model is None:
            continue
        secret = policy.model.secret_ref
        scripted = role == ENGINE and policy.engine.kind is EngineKind.SCRIPTED
        if role != WORKER and not scripted:
            yield Need(policy.model.uri, "model", secret)
        yield Need(policy.tokenizer or policy.model.uri, "tokenizer", secret)
        if role == TRAINER and policy.training.warm_start is not None:
            yield _data(policy.training.warm_start.data)


def _data(data: DataSpec) -> Need:
    return Need(data.uri, "all", data.secret_ref)
