"""What may be trained: the rules a leased group has to keep, and the bound on log-prob gaps. Pure.

The store keeps these rules too. They are checked again here because a token trained against the
wrong version is never noticed later: training goes on, only worse.
"""

import numpy as np

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.policy import EngineKind
from flexmarl.experience.columns import START, TOKENS, TURNS, VERSION, starts
from flexmarl.experience.samples import LeasedGroup
from flexmarl.runtime.errors import JobFailedError
from flexmarl.trainer.accumulate import StepTotals


def check_group(
    group: LeasedGroup,
    policy: str,
    step: int,
    groups: int,
    vocabulary: int,
    *,
    staleness: int = 0,
) -> None:
    """JobFailedError unless `group` is one of the `groups` of this step, no token of it too old.

    Every token comes from a version in [step - staleness, step]. A replayed group has to keep the
    bound of the step that it was played for.
    """
    where = f"policy {policy}, step {step}: group {group.id}"
    columns = group.columns
    if columns.policy != policy or group.id.step != step:
        raise JobFailedError(
            f"{where} is of policy {columns.policy}, step {group.id.step}: the store mixed them up"
        )
    if group.id.index >= groups:
        raise JobFailedError(f"{where} has an index beyond the step's {groups} groups")
    if not len(columns):
        return
    sequences, tables = columns.tables.sequences, columns.tables
    turns = sequences[:, TURNS]
    at_once = tables.turns[starts(turns)[turns > 0], START] == 0
    if at_once.any():
        name = columns.name(int(np.flatnonzero(turns)[at_once.argmax()]))
        raise JobFailedError(f"{where}: sequence {name} has no prompt to sample from")
    if (token := int(columns.token_ids.max(initial=0))) >= vocabulary:
        ends = np.cumsum(sequences[:, TOKENS])
        name = columns.name(int(np.searchsorted(ends, columns.token_ids.argmax(), side="right")))
        raise JobFailedError(
            f"{where}: sequence {name} has token {token}, the model {vocabulary} embeddings: "
            "another policy's tokenizer?"
        )
    versions = {columns.version, *tables.spans[:, VERSION].tolist()}
    oldest = max(0, step - staleness)
    if not oldest <= min(versions) <= max(versions) <= step:
        allowed = f"version {step}" if oldest == step else f"versions {oldest} to {step}"
        raise JobFailedError(
            f"{where} has tokens of version {', '.join(map(str, sorted(versions)))}; "
            f"{'' if staleness else 'on policy '}every token of step {step} comes from {allowed}"
        )


def comparable(spec: MARLJobSpec, policy: str) -> bool:
    """Whether the engine's log-probs are a model's at all."""
    return spec.policy(policy).engine.kind is not EngineKind.SCRIPTED


def incomparable_agents(spec: MARLJobSpec, policy: str) -> dict[str, str]:
    """Agents whose sampling log-probs are not of the policy's whole distribution, and why.

    By the job file; what a call asks for instead stands with its turn.
    """
    if not comparable(spec, policy):
        return {agent.name: "scripted engine" for agent in spec.agents_of(policy)}
    reasons = {}
    for agent in spec.agents_of(policy):
        sampling = agent.sampling
        if sampling.temperature == 0:
            reasons[agent.name] = "temperature 0"
        elif sampling.top_p < 1:
            reasons[agent.name] = f"top_p {sampling.top_p:g}"
        elif sampling.top_k:
            reasons[agent.name] = f"top_k {sampling.top_k}"
    return reasons


def check_gap(totals: StepTotals, policy: str, step: int, bound: float) -> None:
    """JobFailedError when training and sampling disagree by more than `bound` on average."""
    if totals.gap_mean <= bound:
        return
    raise JobFailedError(
        f"policy {policy}, step {step}: training and sampling log-probs differ by "
        f"{totals.gap_mean:.3g} on average over {totals.sums.compared:.0f} tokens (at most "
        f"{totals.sums.gap_max:.3g}); training.maxLogprobGap is {bound:g}. The engine does not "
        "sample from the weights that are trained. Likely causes: weights not in sync after the "
        "last step (see weightSync.check), log-probs taken before temperature, top-p or top-k, or "
        "numeric differences of a low-precision dtype (try float32, or raise the bound)"
    )
