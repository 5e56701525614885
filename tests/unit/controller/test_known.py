"""What is remembered of a job's orchestrator."""

from __future__ import annotations

import pytest

from flexmarl.controller.asking import Unanswered
from flexmarl.controller.known import Known
from flexmarl.controller.observed import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("flexmarl.controller.known.time.monotonic", lambda: now[0])
    return now


def test_silence_is_news_once_it_is_long_and_so_is_its_end(clock: list[float]) -> None:
    known, silent, says = Known("1"), Unanswered("UNAVAILABLE"), Progress("Running", 1)
    known.led_by("10.0.0.5")
    assert known.hears(says)
    for now, news in ((200.0, False), (250.0, False), (261.0, True), (300.0, False)):
        clock[0] = now
        assert known.hears(silent) is news
    assert known.silence == "UNAVAILABLE"
    assert known.hears(says)
    assert not known.silence
    assert not known.hears(says)


def test_another_pod_is_given_its_own_time(clock: list[float]) -> None:
    known = Known("1")
    known.led_by("10.0.0.5")
    known.hears(Unanswered("UNAVAILABLE"))
    clock[0] += 61
    known.led_by("10.0.0.6")
    assert not known.hears(Unanswered("UNAVAILABLE"))
    clock[0] += 61
    known.led_by("10.0.0.6")
    assert known.hears(Unanswered("UNAVAILABLE"))
    known.led_by(None)
    assert not known.silence
