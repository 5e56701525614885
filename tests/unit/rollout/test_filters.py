from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.unit.experience.groups import columns_of

from flexmarl.contracts.policy import Algorithm
from flexmarl.data.tasks import Task
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
)
from flexmarl.rollout.filters import ContrastFilter, FunctionFilter, PlayedGroup, has_contrast
from flexmarl.trainer.batch import prepare


def sequence(
    episode: int, reward: float | None, turns: list[float | None], agent: str = "a"
) -> Sequence:
    length = 2 * len(turns) + 1
    mask = np.zeros(length, np.uint8)
    mask[1:] = 1
    spans = tuple(
        TurnSpan(1 + 2 * n, 3 + 2 * n, (VersionSpan(1, 0, 2),), "stop", 1.0, own)
        for n, own in enumerate(turns)
    )
    zeros = np.zeros(length, np.float32)
    name = f"1/1/0/{episode}/{agent}/0"
    return Sequence(name, agent, episode, zeros.astype(np.int32), mask, zeros, spans, reward)


def group(*sequences: Sequence) -> PlayedGroup:
    return PlayedGroup(Task("t", {}), (), (PolicySamples("p", 1, sequences),))


@pytest.mark.parametrize(
    ("sequences", "kept"),
    [
        ([], False),
        ([sequence(0, 1.0, [None])], False),
        ([sequence(0, 1.0, [None]), sequence(1, 1.0, [None])], False),
        ([sequence(0, 1.0, [None]), sequence(1, None, [None])], False),
        ([sequence(0, 1.0, [None]), sequence(1, 0.0, [None])], True),
        ([sequence(0, 0.1 + 0.2, [None]), sequence(1, 0.3, [None])], False),  # rounding
        ([sequence(0, 1.0, [None]), sequence(0, 0.0, [None], "b")], False),  # of two agents
        ([sequence(0, None, [0.0, 1.0])], True),  # own rewards, one episode
        ([sequence(0, 1.0, [0.5]), sequence(1, 0.0, [0.5])], False),  # own rewards outrank
        ([sequence(0, 1.0, [0.5, None]), sequence(1, 0.0, [0.5])], True),
    ],
)
async def test_contrast_is_what_gives_an_advantage(sequences: list[Sequence], kept: bool) -> None:
    assert await ContrastFilter().keep(group(*sequences)) is kept


async def test_a_group_is_kept_when_one_of_its_policies_can_learn() -> None:
    alike = PolicySamples("p", 1, (sequence(0, 1.0, [None]), sequence(1, 1.0, [None])))
    apart = PolicySamples("q", 1, (sequence(0, 1.0, [None], "b"), sequence(1, 0.0, [None], "b")))
    for samples, kept in (((alike, apart), True), ((apart, alike), True), ((alike, alike), False)):
        assert await ContrastFilter().keep(PlayedGroup(Task("t", {}), (), samples)) is kept


REWARD = st.none() | st.sampled_from([0.0, 0.5, 1.0, 1 / 3]) | st.floats(-10, 10)
SEQUENCES = st.lists(
    st.tuples(REWARD, st.lists(REWARD, min_size=1, max_size=3), st.sampled_from("ab")), max_size=6
)


@given(SEQUENCES, st.sampled_from([Algorithm.GRPO, Algorithm.DR_GRPO, Algorithm.RLOO]))
def test_the_filter_and_the_trainer_agree(
    rows: list[tuple[float | None, list[float | None], str]], algorithm: Algorithm
) -> None:
    sequences = [
        sequence(episode, reward, turns, agent)
        for episode, (reward, turns, agent) in enumerate(rows)
    ]
    columns = columns_of(PolicySamples("p", 1, tuple(sequences)), GroupId(1, 1, 0))
    assert has_contrast(sequences) == prepare(columns, algorithm).live


async def test_ones_own_filter_decides_sync_or_async() -> None:
    def sync(group: PlayedGroup) -> bool:
        return group.task.id == "t"

    async def later(group: PlayedGroup) -> bool:
        await asyncio.sleep(0)
        return group.task.id != "t"

    assert await FunctionFilter(sync, 5).keep(group())
    assert not await FunctionFilter(later, 5).keep(group())


def raises(group: PlayedGroup) -> bool:
    raise KeyError("oh")


def sleeps(group: PlayedGroup) -> bool:
    time.sleep(0.5)
    return False


async def awaits(group: PlayedGroup) -> bool:
    await asyncio.Event().wait()
    return False


@pytest.mark.parametrize("function", [raises, sleeps, awaits, lambda group: None])
async def test_a_broken_filter_keeps_the_group_and_says_so_once(
    function: Callable[[PlayedGroup], Any],
) -> None:
    broken = FunctionFilter(function, 0.05)
    with capture_logs() as logs:
        assert [await broken.keep(group()) for _ in range(3)] == [True] * 3
    assert [entry["event"] for entry in logs] == ["filter failed; such groups are kept"]
