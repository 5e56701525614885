from __future__ import annotations

from typing import Any

import pytest

from flexmarl.contracts.job import MARLJobSpec
from flexmarl.experience.capacity import check_capacity, kept_steps, step_bytes, steps_held
from flexmarl.runtime.errors import InvalidJobError

MODEL = {"uri": "random://llama?hidden=64&layers=2&heads=4"}


def spec(**fields: Any) -> MARLJobSpec:
    """Two trained agents of 100 and 50 tokens, a judge of 1000; 10 groups of 4 episodes."""
    return MARLJobSpec.model_validate(
        {
            "policies": [
                {"name": "solver", "model": MODEL},
                {"name": "verifier", "model": MODEL},
                {"name": "judge", "model": MODEL, "training": {"algorithm": "none"}},
            ],
            "agents": [
                {"name": name, "policy": name, "sampling": {"maxTokens": tokens}}
                for name, tokens in (("solver", 100), ("verifier", 50), ("judge", 1000))
            ],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 1,
            "batch": {"tasksPerStep": 10, "groupSize": 4},
            **fields,
        }
    )


ONE = 10 * 4 * 150 * 9


def test_a_step_is_counted_with_one_turn_of_each_agent_that_learns() -> None:
    assert step_bytes(spec()) == ONE
    named = spec(workflow={"name": "solver-verifier", "participants": "who"})
    assert step_bytes(named) == 10 * 4 * 50 * 9


@pytest.mark.parametrize(("pipeline", "steps"), [
    ({}, 1), ({"maxStaleness": 2}, 3), ({"replay": {"share": 1, "maxAge": 3}}, 4),
    ({"maxStaleness": 1, "replay": {"share": 0.5}}, 3),
    ({"deterministic": True, "replay": {"share": 1, "maxAge": 3}}, 14),
])  # fmt: skip
def test_steps_ahead_and_steps_kept_have_to_fit_too(pipeline: dict[str, Any], steps: int) -> None:
    job = spec(pipeline=pipeline, checkpoint={"everySteps": 10})
    assert steps_held(job) == steps
    check_capacity(job, steps * ONE)
    with pytest.raises(InvalidJobError, match=f"cannot hold {steps} steps"):
        check_capacity(job, steps * ONE - 1)


def test_steps_stay_in_the_store_for_as_long_as_they_may_be_replayed() -> None:
    def kept(**pipeline: object) -> int:
        return kept_steps(spec(pipeline=pipeline, checkpoint={"everySteps": 10}))

    assert kept() == 0
    assert kept(replay={"share": 1, "maxAge": 3}) == 3
    # Rolled back to a checkpoint, a deterministic job replays what it did the first time.
    assert kept(replay={"share": 1, "maxAge": 3}, deterministic=True) == 13


def test_a_server_without_a_bound_holds_everything() -> None:
    check_capacity(spec(batch={"tasksPerStep": 1000000, "groupSize": 64}), 0)


def test_the_message_says_what_to_change() -> None:
    with pytest.raises(
        InvalidJobError,
        match=r"store\.maxMemoryMib: 0 MiB cannot hold 2 steps \(1 \+ maxStaleness 1\) of 10 "
        r"groups of 4 episodes: .* needs 1 MiB; raise it",
    ):
        check_capacity(spec(pipeline={"maxStaleness": 1}), 1000)
    replay = {"deterministic": True, "replay": {"share": 1, "maxAge": 3}}
    with pytest.raises(
        InvalidJobError,
        match=r"9 steps \(1 \+ maxStaleness 0 \+ replay.maxAge 3 \+ checkpoint.everySteps 5\)",
    ):
        check_capacity(spec(pipeline=replay, checkpoint={"everySteps": 5}), 1000)
    with pytest.raises(InvalidJobError, match=r"store\.url: the server's maxmemory: 0 MiB"):
        check_capacity(spec(store={"url": "redis://x"}), 1000)
