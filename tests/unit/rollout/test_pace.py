"""What comes up at once is spread over turns of the event loop, so that others get theirs."""

from __future__ import annotations

import asyncio

import pytest

from flexmarl.rollout import pace
from flexmarl.rollout.pace import Pace


async def turns_of(tasks: int) -> list[int]:
    """In which turn of the loop each of them went on."""
    shared, now, went_on = Pace(), 0, list[int]()

    async def count() -> None:
        nonlocal now
        while len(went_on) < tasks:
            now += 1
            await asyncio.sleep(0)

    async def one() -> None:
        await shared.keep()
        went_on.append(now)

    await asyncio.gather(count(), *(one() for _ in range(tasks)))
    return went_on


async def test_short_work_is_done_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "TURN_SECONDS", 60)
    assert len(set(await turns_of(20))) == 1


async def test_of_long_work_one_piece_is_done_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "TURN_SECONDS", 0)
    assert len(set(await turns_of(20))) == 20
