"""While the store is full one asks for all, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.experience.turns import Turns


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    leaving=st.sets(st.integers(0, 7)),
)
def test_one_at_a_time_older_steps_first(steps: list[int], leaving: set[int]) -> None:
    asyncio.run(_check(steps, leaving))


async def _check(steps: Sequence[int], leaving: set[int]) -> None:
    turns, inside, order = Turns(), 0, list[int]()
    gate = asyncio.Event()

    async def ask(number: int) -> None:
        nonlocal inside
        async with turns.of(steps[number]):
            inside += 1
            assert inside == 1
            order.append(number)
            await (gate.wait() if number == 0 else asyncio.sleep(0))
            inside -= 1

    async with asyncio.timeout(60):
        tasks = [asyncio.create_task(ask(number)) for number in range(len(steps))]
        await asyncio.sleep(0)
        gone = {number for number in leaving if 0 < number < len(steps)}
        for number in gone:
            tasks[number].cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert order[0] == 0
    assert set(order) == set(range(len(steps))) - gone
    assert order[1:] == sorted(order[1:], key=lambda number: (steps[number], number))


async def test_who_leaves_in_the_moment_of_its_turn_passes_it_on() -> None:
    turns = Turns()

    async def ask() -> None:
        async with turns.of(0):
            pass

    async with asyncio.timeout(60):
        async with turns.of(0):
            first, second = (asyncio.create_task(ask()) for _ in range(2))
            await asyncio.sleep(0)
        first.cancel()  # its turn has come, but it does not know yet
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        await second
        await ask()
