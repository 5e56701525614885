"""What was counted long ago is not told any more."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flexmarl.controller.troubles import Troubles


class Empty:
    """A cluster without nodes."""

    async def pages(self, *about: Any, **more: Any) -> AsyncIterator[list[Any]]:
        yield []


async def test_rooms_hold_until_they_should_have_been_counted_again_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty: Any = Empty()
    troubles = Troubles(empty, ["here"])
    assert troubles.rooms is None
    await troubles.count()
    counted = time.monotonic()
    for late, told in ((0, True), (30, True), (1000, False)):
        monkeypatch.setattr(time, "monotonic", lambda late=late: counted + late)
        assert (troubles.rooms is not None) is told
