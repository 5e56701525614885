"""A store that goes away, or has no room, is told as a condition while it is so."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from tests.unit.controller.seen import a_pod, document, seen, subject

from flexmarl.cli.jobview import overview
from flexmarl.controller.findings import find
from flexmarl.controller.observed import Ended, Finding, JobState, Observed, Progress
from flexmarl.controller.phase import Phase, next_phase
from flexmarl.controller.seeing import own_store
from flexmarl.controller.status import is_news, next_status, troubled

SPEC = subject().job.spec
WHY = "experience service 10.0.0.9:7070: the store does not answer: Connection refused"
LEADER = a_pod("orchestrator", ready=True, ip="10.0.0.5")
SERVICE = a_pod("experience", ready=True)
RUNS = seen(
    pods=(LEADER, SERVICE), orchestrator=JobState.ACTIVE, progress=Progress("Running", step=3)
)


def says(**what: Any) -> Observed:
    return replace(RUNS, progress=Progress("Running", step=3, **what))


def status_of(
    what: Observed, phase: Phase = Phase.RUNNING, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    return next_status(before or {"phase": "Running"}, what, find(what), phase, SPEC)


def condition(status: dict[str, Any]) -> tuple[str, str, str]:
    (found,) = (one for one in status["conditions"] if one["type"] == "StoreReady")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    ("own", "trouble", "reason", "words"),
    [
        (False, {"store_away": WHY}, "StoreUnreachable", f"the installation's store .*{WHY}"),
        (True, {"store_away": WHY}, "StoreUnreachable", "the store that spec.store names"),
        (False, {"store_full": (7, 8)}, "StoreFull", "7 of 8 MiB .*store.maxMemoryMib of the ch"),
        (True, {"store_full": (7, 8)}, "StoreFull", "7 of 8 MiB .*its server a larger maxmemory"),
    ],
)
def test_it_is_a_reason_a_condition_and_news_once(
    own: bool, trouble: dict[str, Any], reason: str, words: str
) -> None:
    quiet = status_of(RUNS)
    assert condition(quiet) == ("True", "Ready", "")
    what = replace(says(**trouble), own_store=own)
    (found,) = find(what)
    assert not found.fatal
    assert next_phase(Phase.RUNNING, what, [found]) is Phase.RUNNING
    told = status_of(what, before=quiet)
    assert condition(told) == ("False", reason, found.message)
    assert (told["reason"], told["message"]) == (reason, found.message)
    assert re.search(words, found.message)
    assert is_news(quiet, told, trouble=troubled(told, [found]))
    more = status_of(what, before=told)
    assert not is_news(told, more, trouble=troubled(more, [found]))
    back = status_of(RUNS, before=more)
    assert condition(back) == ("True", "Ready", "")
    assert back["reason"] == "Running"


def test_a_suspension_that_waits_for_it_says_so() -> None:
    what = replace(says(store_away=WHY), suspend=True)
    status = status_of(what, Phase.SUSPENDING)
    assert status["reason"] == "StoreUnreachable"
    assert condition(status)[:2] == ("False", "StoreUnreachable")


@pytest.mark.parametrize(
    "nobody",
    [
        replace(RUNS, pods=(replace(LEADER, ready=False), SERVICE)),
        replace(RUNS, silence="UNAVAILABLE: no route"),
        replace(RUNS, pods=(LEADER, replace(SERVICE, ready=False))),
        replace(RUNS, pods=(LEADER,)),
    ],
    ids=["gone", "silent", "service not ready", "service gone"],
)
def test_it_is_not_told_of_where_the_orchestrator_or_the_service_does_not_answer(
    nobody: Observed,
) -> None:
    what = replace(nobody, progress=Progress("Running", store_away=WHY))
    assert "StoreUnreachable" not in [one.reason for one in find(what)]


def test_it_is_not_ready_before_its_service_is() -> None:
    starting = replace(RUNS, pods=(replace(SERVICE, ready=False),), progress=None)
    told = condition(status_of(starting, Phase.STARTING))
    assert told == ("False", "PodsNotReady", "waiting for team-experience-0")
    words = "the store does not answer: Error 111 connecting to 10.0.0.1:6379"
    waits = replace(SERVICE, ready=False, ended=Ended(1, "Error", words))
    told = condition(status_of(replace(starting, pods=(waits,)), Phase.STARTING))
    assert told[1] == "StoreUnreachable"
    assert words in told[2]
    away = Finding("StoreUnreachable", "it does not admit the job")
    told = condition(status_of(seen(findings=(away,)), Phase.STARTING))
    assert told == ("False", away.reason, away.message)


@pytest.mark.parametrize("phase", [Phase.COMPLETE, Phase.FAILED, Phase.SUSPENDED])
def test_a_job_at_rest_needs_none(phase: Phase) -> None:
    status = next_status({"phase": "Running"}, RUNS, [], phase, SPEC)
    assert condition(status) == ("False", status["reason"], status["message"])


@pytest.mark.parametrize(
    ("store", "own"),
    [({}, False), ({"url": "redis://store:6379"}, True), ({"secretRef": {"name": "x"}}, True)],
)
def test_whose_store_it_is_stands_in_the_spec(store: dict[str, Any], own: bool) -> None:
    assert own_store({"store": store}) is own
    assert not own_store({})


def test_flexmarl_status_says_the_same_words_once() -> None:
    job = document() | {"status": status_of(says(store_away=WHY))}
    console = Console(file=io.StringIO(), width=400)
    console.print(overview(job))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count(WHY) == 1
    assert "StoreUnreachable: the installation's store cannot be used" in text
