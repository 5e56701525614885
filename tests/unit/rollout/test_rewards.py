from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flexmarl.contracts.job import RewardSpec
from flexmarl.data.tasks import Task
from flexmarl.rollout.border import ExitError, OverdueError
from flexmarl.rollout.episode import Episode
from flexmarl.rollout.plugins import JobCodeError
from flexmarl.rollout.rewards.errors import RewardError, RewardTimeoutError
from flexmarl.rollout.rewards.runner import FunctionRunner, make_reward, per_agent
from flexmarl.rollout.rewards.scorers import Scorer, ScorerChoice, make_scorer
from flexmarl.rollout.rewards.threads import DaemonThreads

AGENTS = ("a", "b")
TASK = Task("t", {"question": "1+1", "answer": "2"})


def scorer(name: str, **config: Any) -> Scorer:
    return make_scorer(ScorerChoice(name=name, config=config, timeout=2), ("scorer",))


@pytest.mark.parametrize(
    ("config", "text", "score"),
    [
        ({}, " 2 ", 1.0),
        ({}, "It is 2", 0.0),
        ({"lastToken": True}, "It is **2**.", 1.0),
        ({"lastToken": True}, "", 0.0),
        ({"extract": "= *(\\d+)"}, "1+0 = 1, 1+1 = 2!", 1.0),
        ({"extract": "\\d"}, "2 or 3", 0.0),
        ({"extract": "\\d"}, "none", 0.0),
        ({"answer": "question"}, "1+1", 1.0),
    ],
)
async def test_exact_match(config: dict[str, Any], text: str, score: float) -> None:
    assert await scorer("exact-match", **config).score(text, TASK.record) == score


async def test_exact_match_takes_any_of_several_answers() -> None:
    record = {"answer": ["Two", 2]}
    exact = scorer("exact-match", ignoreCase=True)
    assert [await exact.score(text, record) for text in ("two", "2", "3")] == [1.0, 1.0, 0.0]


async def test_a_task_without_its_answer_stops_the_job_with_the_field() -> None:
    with pytest.raises(JobCodeError, match=r'no field "answer".*did you mean "answers"'):
        await scorer("exact-match").score("2", {"answers": "2"})


def test_a_wrong_scorer_is_named_with_the_nearest() -> None:
    with pytest.raises(
        JobCodeError, match=r'scorer.name: "exact_match" is no scorer.*"exact-match"'
    ):
        scorer("exact_match")
    with pytest.raises(JobCodeError, match=r"scorer.config.extract: .*missing \)"):
        scorer("exact-match", extract="(")


async def test_math_compares_values_and_survives_an_endless_one() -> None:
    mathematics = scorer("math", processes=1)
    try:
        await mathematics.start()
        assert await mathematics.score(r"so it is $\frac{1}{2}$", {"answer": "0.5"}) == 1.0
        assert await mathematics.score("3", {"answer": "0.5"}) == 0.0
        assert await mathematics.score("", {"answer": "0.5"}) == 0.0
        with pytest.raises(RewardTimeoutError):
            await mathematics.score("$9^{9^{9}}$", {"answer": "5"})
        with pytest.raises(RewardError, match="is no expression"):
            await mathematics.score("4", {"answer": ""})
        assert await mathematics.score("4", {"answer": "2+2"}) == 1.0
    finally:
        await mathematics.close()


async def test_gym_scores_with_the_generator_of_the_record() -> None:
    record = {"question": "4 + 3 = ?", "answer": "7", "metadata": {}, "gym": "chain_sum"}
    gym = scorer("gym", processes=1)
    try:
        assert await gym.score("<answer>7</answer>", record) == 1.0
        assert await gym.score("hm <answer>8</answer>", record) < 1.0
        with pytest.raises(RewardError, match="no_such"):
            await gym.score("7", {**record, "gym": "no_such"})
        assert await gym.score("7", record) == 1.0
    finally:
        await gym.close()


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (None, {"a": None, "b": None}),
        (1, {"a": 1.0, "b": 1.0}),
        (True, {"a": 1.0, "b": 1.0}),
        ({"a": 0.5}, {"a": 0.5, "b": None}),
        ({"a": None, "b": -2}, {"a": None, "b": -2.0}),
    ],
)
def test_a_reward_for_each_agent(value: Any, rewards: dict[str, float | None]) -> None:
    assert per_agent(value, AGENTS) == rewards


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", {"a": math.nan}, [1], {"c": 1.0}])
def test_what_is_no_reward_is_refused(value: Any) -> None:
    with pytest.raises(RewardError):
        per_agent(value, AGENTS)


@pytest.fixture
def episode(make_episode: Callable[..., Episode]) -> Episode:
    return make_episode(a=lambda _: "2")


async def test_a_users_functions_run_sync_and_async(episode: Episode) -> None:
    def plain(task: Task, episode: Episode, scale: float = 1.0) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return scale * float(task.record["answer"])

    async def later(task: Task, episode: Episode) -> dict[str, float]:
        return {"a": 1.0}

    assert await FunctionRunner(plain, {"scale": 2}, 5).reward(TASK, episode) == 4.0
    assert await FunctionRunner(later, {}, 5).reward(TASK, episode) == {"a": 1.0}


async def test_a_reward_that_takes_too_long_is_a_timeout_and_its_own_timeout_is_not(
    episode: Episode,
) -> None:
    release = threading.Event()

    async def slow(task: Task, episode: Episode) -> float:
        await asyncio.sleep(3600)
        return 1.0

    def own(task: Task, episode: Episode) -> float:
        raise TimeoutError("mine")

    with pytest.raises(RewardTimeoutError):
        await FunctionRunner(slow, {}, 0.01).reward(TASK, episode)
    with pytest.raises(RewardTimeoutError):
        await FunctionRunner(lambda *_: release.wait(), {}, 0.01).reward(TASK, episode)
    with pytest.raises(TimeoutError, match="mine"):
        await FunctionRunner(own, {}, 5).reward(TASK, episode)
    release.set()


async def test_overdue_functions_do_not_take_the_place_of_others() -> None:
    release = threading.Event()
    threads = DaemonThreads("test", threads=1, spare=2)
    for _ in range(2):
        with pytest.raises(OverdueError):
            await threads.run(release.wait, 0.01)
    assert await threads.run(lambda: 5, 5) == 5
    with pytest.raises(OverdueError):
        await threads.run(release.wait, 0.01)
    with pytest.raises(OverdueError):  # no thread is left; waiting counts
        await threads.run(lambda: 5, 0.01)
    release.set()
    assert await threads.run(lambda: 6, 5) == 6


async def test_what_a_function_raises_arrives() -> None:
    threads = DaemonThreads("test")
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0, 5)
    with pytest.raises(ExitError, match="SystemExit"):
        await threads.run(sys.exit, 5)


def test_a_function_that_sleeps_for_an_hour_does_not_hold_the_process() -> None:
    program = """
import asyncio, time
from flexmarl.rollout.border import OverdueError
from flexmarl.rollout.rewards.threads import DaemonThreads
async def main():
    try:
        await DaemonThreads("reward").run(lambda: time.sleep(3600), 0.05)
    except OverdueError:
        print("overdue")
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "overdue\n"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RewardSpec(name="exact-mach"), 'spec.reward.name: "exact-mach" is no reward.*exact-match'),
        (RewardSpec(), "spec.reward: names no reward"),
        (RewardSpec(name="math", entrypoint="a:b"), "spec.reward: names a reward twice"),
        (
            RewardSpec(name="exact-match", config={"anwser": "x"}),
            'spec.reward.config.anwser: unknown field.*"answer"',
        ),
        (RewardSpec(name="gym", config={"agent": "c"}), "spec.reward.config.agent: .*a or b"),
        (
            RewardSpec(entrypoint="no_such_module:f"),
            'spec.reward.entrypoint: "no_such_module:f": cannot be imported: ModuleNotFoundError',
        ),
        (RewardSpec(entrypoint="math:sqr"), 'math has no sqr; did you mean "sqrt"'),
        (RewardSpec(entrypoint="math:pi"), "is no function"),
        (
            RewardSpec(entrypoint="shutil:copyfile", config={"folow": 1}),
            "spec.reward.config: .*folow.*follow_symlinks",
        ),
    ],
)
def test_a_wrong_reward_is_named(spec: RewardSpec, words: str) -> None:
    with pytest.raises(JobCodeError, match=words):
        make_reward(spec, AGENTS)


async def test_the_named_agents_last_reply_is_scored(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode(a=lambda _: "2", b=lambda _: "3")
    await episode.team["a"].chat("x")
    await episode.team["b"].chat("x")
    last = make_reward(RewardSpec(name="exact-match"), AGENTS)
    of_a = make_reward(RewardSpec(name="exact-match", config={"agent": "a"}), AGENTS)
    assert await last.reward(TASK, episode) == 0.0
    assert await of_a.reward(TASK, episode) == 1.0


@pytest.mark.parametrize("name", ["exact-match", "math", "gym"])
async def test_a_pattern_that_explodes_is_stopped_while_the_loop_goes_on(name: str) -> None:
    explosive = make_scorer(
        ScorerChoice(name=name, config={"extract": r"^(a|aa)+$"}, timeout=0.5), ("scorer",)
    )
    record = {"question": "x", "answer": "2", "metadata": {}, "gym": "chain_sum"}
    rounds = 0

    async def beat() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beat())
    with pytest.raises(RewardTimeoutError, match=r"extract .* took more than 0.5 s"):
        await explosive.score("a" * 60 + "b", record)
    beating.cancel()
    assert rounds > 5
