"""`bench store`: what it says comes from real processes; how fast they are is not a test."""

from __future__ import annotations

import pytest

from flexmarl.bench import rivals
from flexmarl.bench import store as bench


async def test_both_sides_of_each_measure_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "MEMORY_STEP", 20)
    case = bench.Case(kib=1, groups=4, raw_goal=0.2, rival_goal=1.0)

    async def rate(*_: object) -> float:
        return 10.0

    async with bench.services() as services:
        raw = await bench.against_raw(services, case, producers=2)
        rival = await bench.against_rival(services, case, rivals.Rival("another", rate))
        memory = await bench.memory(services, groups=100)
    assert (raw.unit, raw.goal) == ("groups/s", 0.2)
    assert raw.value > 0
    assert raw.baseline is not None
    assert raw.baseline > 0
    assert (rival.baseline, rival.goal) == (10.0, 1.0)
    assert memory.name == "memory left by 100 groups"
    assert memory.met


def test_a_rival_that_is_not_installed_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda _: None)
    said: list[str] = []
    assert rivals.find(said.append) is None
    assert said == ["transferqueue is not installed, it is left out: pip install transferqueue"]
