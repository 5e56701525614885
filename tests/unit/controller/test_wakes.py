"""Which job is looked at next: each once, however often it was named, and by one at a time."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.controller.cache import Key
from flexmarl.controller.wakes import Wakes

ONE, OTHER = Key("research", "one"), Key("research", "other")


async def at_once(wakes: Wakes) -> Key:
    async with asyncio.timeout(5):
        key, _ = await wakes.next()
        return key


async def nothing(wakes: Wakes) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await wakes.next()


async def test_a_job_named_often_is_looked_at_once() -> None:
    wakes = Wakes()
    for _ in range(5):
        wakes.wake(ONE)
    assert await at_once(wakes) == ONE
    wakes.done(ONE)
    await nothing(wakes)


async def test_a_job_that_is_named_during_a_look_is_looked_at_again_after_it() -> None:
    wakes = Wakes()
    wakes.wake(ONE)
    assert await at_once(wakes) == ONE
    wakes.wake(ONE)
    wakes.wake(OTHER)
    assert await at_once(wakes) == OTHER
    await nothing(wakes)
    wakes.done(ONE)
    assert await at_once(wakes) == ONE


async def test_the_earlier_of_two_times_counts() -> None:
    wakes = Wakes()
    wakes.wake(ONE, 60)
    await nothing(wakes)
    wakes.wake(ONE)
    wakes.wake(ONE, 60)
    assert await at_once(wakes) == ONE
    wakes.done(ONE)
    wakes.wake(ONE, 0.01)
    assert await at_once(wakes) == ONE


async def test_since_when_it_is_due_is_told() -> None:
    wakes, before = Wakes(), time.monotonic()
    wakes.wake(ONE)
    wakes.wake(OTHER)
    after = time.monotonic()
    await asyncio.sleep(0.02)
    due = [(await wakes.next())[1] for _ in range(2)]
    assert before <= due[0] <= due[1] <= after


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, -5.0, -1.0, 60.0]))))
def test_those_that_are_due_come_earliest_first_and_each_once(
    named: list[tuple[int, float]],
) -> None:
    async def looked_at() -> list[tuple[Key, float]]:
        wakes, earliest = Wakes(), dict[Key, float]()
        for number, delay in named:
            key = Key("research", str(number))
            wakes.wake(key, delay)
            earliest[key] = min(delay, earliest.get(key, delay))
        due = [key for key, delay in earliest.items() if delay <= 0]
        found = [await wakes.next() for _ in due]
        assert {key for key, _ in found} == {*due}
        return found

    times = [at for _, at in asyncio.run(looked_at())]
    assert times == sorted(times)


async def test_a_job_that_is_named_again_and_again_takes_no_more_room() -> None:
    wakes = Wakes()
    for _ in range(1000):
        wakes.wake(ONE)
        assert await at_once(wakes) == ONE
        wakes.done(ONE)
        wakes.wake(ONE, 3600)
    assert len(wakes._queue) < 5
