import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.experience.groups import columns_of

from flexmarl.contracts.job import AgentSpec, MARLJobSpec
from flexmarl.contracts.policy import EngineSpec, PolicySpec
from flexmarl.experience.samples import (
    GroupId,
    LeasedGroup,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
)
from flexmarl.runtime.errors import JobFailedError
from flexmarl.trainer.accumulate import StepTotals, Sums
from flexmarl.trainer.admission import check_gap, check_group, incomparable_agents


def group(
    *,
    version: int = 4,
    spans: tuple[int, ...] = (4,),
    start: int = 2,
    token: int = 7,
    step: int = 4,
) -> LeasedGroup:
    turn = TurnSpan(
        start,
        start + len(spans),
        tuple(VersionSpan(v, at, at + 1) for at, v in enumerate(spans)),
        "stop",
        1.0,
    )
    length = start + len(spans)
    sequence = Sequence(
        id=f"1/{step}/0/0/solver/0",
        agent="solver",
        episode=0,
        token_ids=np.full(length, token, np.int32),
        loss_mask=np.ones(length, np.uint8),
        logprobs=np.zeros(length, np.float32),
        turns=(turn,),
        reward=1.0,
    )
    name = GroupId(1, step, 0)
    samples = PolicySamples("solver", version, (sequence,))
    return LeasedGroup(name, "task", columns_of(samples, name))


def test_a_group_of_the_step_and_its_version_is_trained() -> None:
    check_group(group(), "solver", 4, 1, 10)


def test_an_empty_marker_has_no_tokens_to_check() -> None:
    name = GroupId(1, 4, 0)
    empty = LeasedGroup(name, "task", columns_of(PolicySamples("solver", 0), name))
    check_group(empty, "solver", 4, 1, 10)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (group(version=3), "version 3, 4"),
        (group(spans=(4, 3)), "on policy every token of step 4 comes from version 4"),
        (group(spans=(5,)), "version 4, 5"),
        (group(token=10), "token 10, the model 10 embeddings"),
        (group(start=0), "1/4/0/0/solver/0 has no prompt"),
        (group(step=3), "is of policy solver, step 3"),
    ],
)
def test_what_must_not_be_trained_is_refused(wrong: LeasedGroup, text: str) -> None:
    with pytest.raises(JobFailedError, match=text):
        check_group(wrong, "solver", 4, 1, 10)


def test_older_tokens_are_trained_within_the_bound_only() -> None:
    for spans in ((4, 4), (2, 3), (3, 4), (2, 2)):
        check_group(group(version=min(spans), spans=spans), "solver", 4, 1, 10, staleness=2)
    for spans in ((1, 4), (4, 5)):
        with pytest.raises(JobFailedError, match="comes from versions 2 to 4"):
            check_group(group(version=min(spans), spans=spans), "solver", 4, 1, 10, staleness=2)
    check_group(group(version=0, spans=(0,), step=1), "solver", 1, 1, 10, staleness=2)


@given(st.integers(0, 8), st.integers(0, 4), st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_admission_is_the_interval_of_versions(step: int, bound: int, spans: list[int]) -> None:
    allowed = all(step - bound <= version <= step for version in spans)
    stale = group(version=min(spans), spans=tuple(spans), step=step)
    if allowed:
        check_group(stale, "solver", step, 1, 10, staleness=bound)
    else:
        with pytest.raises(JobFailedError):
            check_group(stale, "solver", step, 1, 10, staleness=bound)


def test_another_policys_group_and_a_stray_index_are_refused() -> None:
    with pytest.raises(JobFailedError, match="mixed"):
        check_group(group(), "verifier", 4, 1, 10)
    with pytest.raises(JobFailedError, match="beyond"):
        check_group(group(), "solver", 4, 0, 10)


def test_the_gap_is_a_mean_over_comparable_tokens() -> None:
    totals = StepTotals()
    totals.add([], Sums(tokens=100, compared=10, gap=1.9, gap_max=1.0))
    check_gap(totals, "solver", 3, bound=0.2)
    totals.add([], Sums(tokens=1, compared=1, gap=0.5, gap_max=0.5))
    with pytest.raises(JobFailedError, match=r"solver, step 3: .* 0.218 on average over 11 tokens"):
        check_gap(totals, "solver", 3, bound=0.2)


def test_agents_whose_sampling_is_cut_are_not_compared() -> None:
    spec = MARLJobSpec.model_validate(
        {
            "policies": [PolicySpec(name="p")],
            "agents": [
                {"name": "plain", "policy": "p", "sampling": {"temperature": 0.6}},
                {"name": "nucleus", "policy": "p", "sampling": {"topP": 0.9}},
                {"name": "top", "policy": "p", "sampling": {"topK": 3}},
                {"name": "greedy", "policy": "p", "sampling": {"temperature": 0}},
            ],
            "workflow": {"name": "debate"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 1,
        }
    )
    assert incomparable_agents(spec, "p") == {
        "nucleus": "top_p 0.9",
        "top": "top_k 3",
        "greedy": "temperature 0",
    }


def test_invented_log_probs_of_the_scripted_engine_are_not_compared() -> None:
    spec = MARLJobSpec.model_validate(
        {
            "policies": [
                PolicySpec(name="p", engine=EngineSpec.model_validate({"kind": "scripted"}))
            ],
            "agents": [AgentSpec(name="a", policy="p")],
            "workflow": {"name": "debate"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 1,
        }
    )
    assert incomparable_agents(spec, "p") == {"a": "scripted engine"}
