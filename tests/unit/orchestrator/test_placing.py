"""Whole groups go to their places, whatever becomes of the storing."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.admission import Place
from flexmarl.orchestrator.draws import Draws
from flexmarl.orchestrator.placing import PLACE_TRIES, Placing, Said


class Recording:
    """The owner; `events` says what happened in which order."""

    def __init__(self, *failures: grpc.StatusCode) -> None:
        self.version = 0
        self.draws = Draws(steps=2, per_step=2, staleness=1)
        self.events: list[str] = []
        self.done = asyncio.Event()
        self._failures = list(failures)

    async def store(self, worker: str, draw: int, place: Place) -> None:
        self.events.append(f"{worker} stores {draw} at {place}")
        if self._failures:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self._failures.pop(0), nothing, nothing, "no")

    async def store_empty(self, draw: int, place: Place) -> None:
        self.events.append(f"empty {draw} at {place}")

    def placed(self, draw: int, place: Place, said: Said) -> None:
        self.events.append(f"placed {draw}")
        self.done.set()

    async def lost(self, draw: int, place: Place, error: grpc.aio.AioRpcError) -> None:
        self.events.append(f"lost {draw}: {error.code().name}")
        self.done.set()


async def events_of(owner: Recording, said: Said) -> list[str]:
    """What happens to one whole draw."""
    placing = Placing(owner, owner.draws)
    owner.draws.issue(0, 0)
    running = asyncio.ensure_future(placing.run())
    placing.whole(0, "w", said)
    await asyncio.wait_for(owner.done.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return owner.events


async def test_a_whole_group_is_stored_by_the_worker_that_holds_it() -> None:
    events = await events_of(Recording(), rollout_pb2.GroupFinished())
    assert events == ["w stores 0 at (0, 0)", "placed 0"]


async def test_a_draw_that_was_given_up_is_stored_empty() -> None:
    assert await events_of(Recording(), "three tries") == ["empty 0 at (0, 0)", "placed 0"]


@pytest.mark.parametrize(("failures", "tries"), [
    ([grpc.StatusCode.NOT_FOUND], 1), ([grpc.StatusCode.UNAVAILABLE] * PLACE_TRIES, PLACE_TRIES),
    ([grpc.StatusCode.DEADLINE_EXCEEDED] * PLACE_TRIES, PLACE_TRIES),
])  # fmt: skip
async def test_a_worker_that_forgot_the_group_is_not_asked_for_ever(
    failures: list[grpc.StatusCode], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.orchestrator.placing.pause", lambda attempt: 0.0)
    events = await events_of(Recording(*failures), rollout_pb2.GroupFinished())
    assert events.count("w stores 0 at (0, 0)") == tries
    assert events[-1] == f"lost 0: {failures[0].name}"


async def test_room_in_the_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flexmarl.orchestrator.placing.pause", lambda attempt: 0.0)
    full = [grpc.StatusCode.RESOURCE_EXHAUSTED] * (2 * PLACE_TRIES)
    events = await events_of(Recording(*full), rollout_pb2.GroupFinished())
    assert events[-1] == "placed 0"


async def test_what_came_to_be_stored_meanwhile_is_let_go_of() -> None:
    """Its step was trained: the call that should have stored it was answered to nobody."""
    owner = Recording()
    placing = Placing(owner, owner.draws)
    owner.draws.issue(0, 0)
    owner.draws.placed[0, 0] = 0
    owner.draws.issue(owner.draws.lost((0, 0)), 0)
    placing.whole(0, "w", rollout_pb2.GroupFinished())
    owner.draws.close(0)
    placing.forget(owner.draws.known())
    owner.draws.issue(1, 1)
    placing.whole(1, "w", rollout_pb2.GroupFinished())
    running = asyncio.ensure_future(placing.run())
    await asyncio.wait_for(owner.done.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert owner.events[-1] == "placed 1"
    assert not any("stores 0" in event for event in owner.events)
