from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flexmarl.contracts.job import WorkflowSpec
from flexmarl.data.tasks import Task
from flexmarl.rollout.episode import Episode
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.prompts import History
from flexmarl.rollout.workflows.base import Rewards, fill_roles
from flexmarl.rollout.workflows.registry import make_workflow

TASK = Task("t", {"question": "max 1 2", "answer": "2", "proposal": "1", "verdict": "no"})


async def run(
    make_episode: Callable[..., Episode],
    name: str,
    config: dict[str, Any],
    task: Task = TASK,
    **agents: Callable[[History], str],
) -> tuple[Rewards, Episode]:
    episode = make_episode(**agents)
    workflow = make_workflow(WorkflowSpec(name=name, config=config), list(agents))
    return await workflow.run(task, episode.team), episode


def prompts(episode: Episode, agent: str) -> list[str]:
    return [turn.history[-1][1] for turn in episode.of(agent)]


async def test_single_asks_once_and_leaves_the_reward_to_the_job(
    make_episode: Callable[..., Episode],
) -> None:
    rewards, episode = await run(make_episode, "single", {}, a=lambda _: "2")
    assert rewards is None
    assert prompts(episode, "a") == ["max 1 2"]


@pytest.mark.parametrize(
    ("answer", "verdict", "rewards"),
    [
        ("2", "Yes.", (1.0, 1.0)),
        ("1", "yes", (0.0, 0.0)),
        ("1", "yes... I mean no", (0.0, 1.0)),
        ("2", "nobody knows", (1.0, 0.0)),
    ],
)
async def test_the_verifier_judges_the_solvers_answer(
    make_episode: Callable[..., Episode],
    answer: str,
    verdict: str,
    rewards: tuple[float, float],
) -> None:
    given, episode = await run(
        make_episode, "solver-verifier", {}, verifier=lambda _: verdict, solver=lambda _: answer
    )
    assert given == dict(zip(("solver", "verifier"), rewards, strict=True))
    assert f"Proposed answer: {answer}\n" in prompts(episode, "verifier")[0]


async def test_fixed_proposals_are_judged_instead(make_episode: Callable[..., Episode]) -> None:
    config = {
        "proposals": {"column": "proposal", "label": "verdict"},
        "verifierPrompt": "{question} is {proposal}?",
    }
    given, episode = await run(
        make_episode, "solver-verifier", config, solver=lambda _: "2", verifier=lambda _: "no"
    )
    assert given == {"solver": 1.0, "verifier": 1.0}
    assert prompts(episode, "verifier") == ["max 1 2 is 1?"]


async def test_without_a_label_the_scorer_says_whether_a_proposal_is_right(
    make_episode: Callable[..., Episode],
) -> None:
    config = {"proposals": {"column": "proposal"}}
    given, _ = await run(
        make_episode, "solver-verifier", config, solver=lambda _: "1", verifier=lambda _: "yes"
    )
    assert given == {"solver": 0.0, "verifier": 0.0}


async def test_debaters_hear_the_others_and_are_paid_for_their_last_answer(
    make_episode: Callable[..., Episode],
) -> None:
    def convinced(history: History) -> str:
        return "2" if len(history) > 2 else "1"

    given, episode = await run(
        make_episode, "debate", {"rounds": 3}, a=convinced, b=lambda _: "2", c=lambda _: "3"
    )
    assert given == {"a": 1.0, "b": 1.0, "c": 0.0}
    assert [turn.agent for turn in episode.turns] == ["a", "b", "c"] * 3
    assert "b: 2\nc: 3" in prompts(episode, "a")[1]
    assert len({id(turn.sequence) for turn in episode.of("a")}) == 1
    assert episode.forks == 0


async def test_a_chain_hands_on_what_was_written(make_episode: Callable[..., Episode]) -> None:
    given, episode = await run(
        make_episode,
        "planner-executor",
        {"executorPrompt": "{plan}|{previous}"},
        x=lambda _: "half",
        planner=lambda _: "plan",
        y=lambda _: "2",
    )
    assert given == {"planner": 1.0, "x": 1.0, "y": 1.0}
    assert prompts(episode, "x") + prompts(episode, "y") == ["plan|plan", "plan|half"]


@pytest.mark.parametrize(("reward", "of_a"), [("own", 0.0), ("team", 1.0)])
async def test_an_aggregator_reads_all_proposals(
    make_episode: Callable[..., Episode], reward: str, of_a: float
) -> None:
    given, episode = await run(
        make_episode,
        "mixture-of-agents",
        {"proposerReward": reward},
        a=lambda _: "1",
        b=lambda _: "2",
        final=lambda _: "2",
    )
    assert given == {"a": of_a, "b": 1.0, "final": 1.0}
    assert "1. 1\n2. 2" in prompts(episode, "final")[0]


def test_roles_go_by_configuration_then_name_then_order() -> None:
    roles = {"solver": None, "verifier": None}
    assert fill_roles(["a", "b"], roles) == {"solver": "a", "verifier": "b"}
    assert fill_roles(["verifier", "b"], roles) == {"solver": "b", "verifier": "verifier"}
    assert fill_roles(["solver", "b"], {"solver": "b", "verifier": None}) == {
        "solver": "b",
        "verifier": "solver",
    }


@pytest.mark.parametrize(
    ("name", "config", "agents", "words"),
    [
        ("solver-verifier", {}, ["a"], "spec.agents: no agent is left to be the verifier"),
        ("solver-verifier", {"solver": "c"}, ["a", "b"], 'config.solver: "c" is no agent; a or b'),
        ("solver-verifier", {"verifier": "a", "solver": "a"}, ["a"], "is the solver"),
        ("solver_verifier", {}, ["a"], 'did you mean "solver-verifier"'),
        ("debate", {}, ["a"], "two or more"),
        ("debate", {"agents": ["a", "a"]}, ["a", "b"], "two or more"),
        (
            "debate",
            {"rounds": 0},
            ["a", "b"],
            "spec.workflow.config.rounds: 0 is not allowed; must be at least 1",
        ),
        ("planner-executor", {}, ["a"], "to execute the plan"),
        ("mixture-of-agents", {}, ["a"], "proposers are none"),
        ("single", {"promt": "x"}, ["a"], 'config.promt: unknown field.*"prompt"'),
        ("single", {"prompt": "{question"}, ["a"], "config.prompt: .*write {{ and }}"),
        ("single", {"prompt": "{}"}, ["a"], "only names of task fields stand in braces"),
        ("environment", {}, ["a"], "config.environment: required, but missing"),
        (
            "environment",
            {"environment": {"entrypoint": "math:pi"}},
            ["a"],
            'config.environment.entrypoint: "math:pi" is no environment',
        ),
        (
            "solver-verifier",
            {"scorer": {"name": "maths"}},
            ["a", "b"],
            'config.scorer.name: .*"math"',
        ),
    ],
)
def test_a_wrong_workflow_is_named(
    name: str, config: dict[str, Any], agents: list[str], words: str
) -> None:
    with pytest.raises(JobCodeError, match=words):
        make_workflow(WorkflowSpec(name=name, config=config), agents)


async def test_a_field_that_the_task_lacks_is_named(make_episode: Callable[..., Episode]) -> None:
    with pytest.raises(
        JobCodeError, match=r'config.prompt: the task has no field "question"; there is query'
    ):
        await run(make_episode, "single", {}, Task("t", {"query": "x"}), a=lambda _: "2")


async def test_braces_in_a_task_are_only_text(make_episode: Callable[..., Episode]) -> None:
    task = Task("t", {"question": "{answer} {0}", "answer": "2"})
    _, episode = await run(make_episode, "single", {}, task, a=lambda _: "2")
    assert prompts(episode, "a") == ["{answer} {0}"]
