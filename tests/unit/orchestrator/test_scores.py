"""Means over what was scored; what was not is counted beside it, never as 0."""

import json

import pytest
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.tasks import Task
from flexmarl.orchestrator.scores import Scores, solved
from flexmarl.orchestrator.summary import summary
from flexmarl.orchestrator.transcripts import episode_lines


def episode(
    outcome: str = "ok", detail: str = "", transcript: str = "", **rewards: float | None
) -> rollout_pb2.EpisodeResult:
    return rollout_pb2.EpisodeResult(
        outcome=outcome,
        detail=detail,
        transcript=transcript,
        agents={
            name: rollout_pb2.AgentStats(turns=1, prompt_tokens=10, sampled_tokens=3, reward=reward)
            for name, reward in rewards.items()
        },
    )


def test_rewards_are_averaged_over_scored_episodes_only() -> None:
    scores = Scores.of(make_job().spec)
    scores.add(
        rollout_pb2.GroupFinished(
            forks=2,
            episodes=[
                episode(p0=1.0, p1=0.5),
                episode(p0=0.0, p1=None),
                episode(p0=1.0),
                episode("timeout", "took 600 s"),
            ],
        )
    )
    first, second = scores.agents["p0"], scores.agents["p1"]
    assert first.score() == {
        "reward": pytest.approx(2 / 3),
        "accuracy": pytest.approx(2 / 3),
        "scored": 3,
        "unscorable": 1,
    }
    assert second.score() == {"reward": 0.5, "accuracy": 0.0, "scored": 1, "unscorable": 2}
    assert (first.turns, first.prompt_tokens, first.sampled_tokens) == (3, 30, 9)
    assert scores.outcomes == {"ok": 3, "timeout": 1}
    assert scores.forks == 2
    assert scores.episodes == 4


def test_what_counts_as_right_is_the_jobs_to_say() -> None:
    """Of rewards from 0 to 10, or of those that never reach 1."""
    group = rollout_pb2.GroupFinished(episodes=[episode(p0=reward) for reward in (0.9, 5, 7, 10)])
    for solved_reward, accuracy in ((1.0, 0.75), (7.0, 0.5), (0.9, 1.0), (11.0, 0.0)):
        scores = Scores.of(make_job(policies=1, solvedReward=solved_reward).spec)
        scores.add(group)
        assert scores.agents["p0"].accuracy == accuracy
        assert solved(group, solved_reward) == {"p0": (accuracy, 4)}


def test_nothing_scored_has_no_mean_and_says_why() -> None:
    scores = Scores.of(make_job(policies=1).spec)
    scores.add(rollout_pb2.GroupFinished(episodes=[episode("workflow-error", "KeyError: 'x'")] * 3))
    scores.give_up(2, "task 5: gone")
    assert scores.agents["p0"].reward is None
    assert scores.agents["p0"].unscorable == 5
    assert scores.scored == 0
    why = scores.why_unscored()
    assert "3 x workflow-error, 2 x given-up" in why
    assert "KeyError: 'x'" in why


def test_transcripts_become_lines() -> None:
    turns = [{"agent": "p0", "messages": [], "text": "2", "finish_reason": "stop", "tokens": 1}]
    group = rollout_pb2.GroupFinished(
        episodes=[episode(p0=1.0, p1=None, transcript=json.dumps({"turns": turns})), episode()]
    )
    lines = episode_lines(3, 1, Task("7", {"question": "1+1"}), group)
    assert lines == [
        {
            "step": 3,
            "index": 1,
            "episode": 0,
            "task_id": "7",
            "task": {"question": "1+1"},
            "outcome": "ok",
            "detail": "",
            "agents": {"p0": 1.0, "p1": None},
            "turns": turns,
        }
    ]


def test_the_summary_takes_first_and_last() -> None:
    def step(number: int, reward: float | None) -> dict[str, object]:
        return {
            "step": number,
            "seconds": {"step": 2.0, "store": 0.25 * number},
            "tokens": {"prompt": 5, "sampled": 2},
            "agents": {"p0": {"reward": reward}, "p1": {"reward": 0.5}},
            "policies": {"p0": {"version": number + 1}, "p1": {"version": number + 1}},
        }

    def evaluated(version: int, accuracy: float) -> dict[str, object]:
        return {"step": version, "agents": {"p0": {"accuracy": accuracy}, "p1": {"accuracy": 1}}}

    value = summary(
        make_job(),
        12.5,
        [step(0, 0.25), step(1, None), step(2, 0.75)],
        [evaluated(0, 0.1), evaluated(3, 0.9)],
    )
    assert value == {
        "job": "small",
        "steps": 3,
        "seconds": 12.5,
        "tokens": 21,
        "store_share": 0.125,
        "policies": {
            "p0": {
                "version": 3,
                "eval_before": 0.1,
                "eval_after": 0.9,
                "reward_first": 0.25,
                "reward_last": 0.75,
            },
            "p1": {
                "version": 3,
                "eval_before": 1.0,
                "eval_after": 1.0,
                "reward_first": 0.5,
                "reward_last": 0.5,
            },
        },
    }


def test_the_summary_of_a_run_without_steps_knows_nothing() -> None:
    value = summary(make_job(policies=1), 1.0, [], [])
    assert value["store_share"] is None
    assert value["policies"]["p0"] == {
        "version": 0,
        "eval_before": None,
        "eval_after": None,
        "reward_first": None,
        "reward_last": None,
    }
