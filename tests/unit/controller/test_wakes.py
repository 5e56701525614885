"""Which job is looked at next: each once, however often it was named, and by one at a time."""

import asyncio

import pytest

from flexmarl.controller.cache import Key
from flexmarl.controller.wakes import Wakes

ONE, OTHER = Key("research", "one"), Key("research", "other")


async def at_once(wakes: Wakes) -> Key:
    async with asyncio.timeout(1):
        return await wakes.next()


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
