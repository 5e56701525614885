"""What the orchestrator says of the store becomes a condition and one event, and goes again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.test_life import ask, events, trained
from tests.contract.controller.test_looks import job

from flexmarl.contracts.v1.experience_pb2 import Memory
from flexmarl.orchestrator.desk import Desk

WHY = "experience service tiny-experience:7070: the store does not answer: Connection refused"


def away(desk: Desk) -> None:
    desk.store_away = WHY


def full(desk: Desk) -> None:
    desk.store_full = Memory(used=7 << 20, most=8 << 20)


@pytest.mark.parametrize(
    ("trouble", "reason", "words"),
    [(away, "StoreUnreachable", WHY), (full, "StoreFull", "7 of 8 MiB are taken")],
)
async def test_it_is_told_while_it_lasts_and_on_transitions_only(
    world: World, trouble: Any, reason: str, words: str
) -> None:
    key = await world.submit(job())

    async def look() -> tuple[str, str, dict[str, Any]]:
        await ask(world, key)
        status = await world.look(key)
        (found,) = (one for one in status["conditions"] if one["type"] == "StoreReady")
        return status["phase"], status["reason"], found

    async with trained(world, key) as desk:
        phase, told, before = await look()
        assert (phase, told, before["status"]) == ("Running", "Running", "True")
        trouble(desk)
        for _ in range(3):
            phase, told, found = await look()
            assert (phase, told) == ("Running", reason)
            assert (found["status"], found["reason"]) == ("False", reason)
            assert words in found["message"]
        desk.store_away, desk.store_full = "", None
        phase, told, found = await look()
        assert (phase, told, found["status"]) == ("Running", "Running", "True")
        assert [one for one in await events(world) if one[1] == reason] == [("Warning", reason)]
