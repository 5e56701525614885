"""What `flexmarl logs --follow` does while the API server is away, and with lines of odd nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flexmarl.cli import following
from flexmarl.cli.following import follow_job, stamped
from flexmarl.cli.podlogs import Wanted
from flexmarl.cli.refusals import Object, RefusalError, UnreachableError

POD: Object = {
    "metadata": {"name": "duel-engine-0", "uid": "p"},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "now"}}}]},
}
AWAY = UnreachableError("The cluster is away")


def job(phase: str) -> Object:
    return {"metadata": {"name": "duel", "uid": "j"}, "spec": {}, "status": {"phase": phase}}


class Cluster:
    """Answers about the job in order, the last for ever; a log of one line."""

    namespace = "team"

    def __init__(self, *answers: Object | Exception, log: Exception | None = None) -> None:
        self.answers: Iterator[Object | Exception] = iter(answers)
        self.last: Object | Exception = answers[-1]
        self._log = log

    async def job(self, name: str) -> Object:
        return job("Running")

    async def find_job(self, name: str) -> Object:
        found = next(self.answers, self.last)
        if isinstance(found, Exception):
            raise found
        return found

    async def pods(self, name: str, role: str) -> list[Object]:
        return [POD]

    async def log(self, pod: str, container: str, **how: Any) -> AsyncIterator[str]:
        if self._log is not None:
            raise self._log
        yield "2026-01-01T00:00:00.5Z one"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.01)


async def followed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> bool:
    @asynccontextmanager
    async def connected(namespace: str | None, context: str | None) -> AsyncIterator[Cluster]:
        yield cluster

    monkeypatch.setattr(following, "connected", connected)
    async with asyncio.timeout(60):
        return await follow_job("duel", None, None, Wanted())


async def test_an_api_server_that_comes_back_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = (AWAY, AWAY, RefusalError("it starts", 503), job("Running"), job("Complete"))
    assert await followed(Cluster(*answers), monkeypatch)
    said = capsys.readouterr()
    assert said.out == "duel-engine-0 | one\n"
    assert said.err.splitlines() == [
        "The cluster is away. It is tried again",
        "it starts. It is tried again",
        "marljob duel is Complete",
    ]


@pytest.mark.parametrize(
    ("error", "patience"), [(AWAY, 0.1), (RefusalError("you may not", 403), 120.0)]
)
async def test_one_that_stays_away_or_says_no_is_not(
    error: Exception, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE_SECONDS", patience)
    with pytest.raises(type(error)) as raised:
        await followed(Cluster(error), monkeypatch)
    assert raised.value is error


@pytest.mark.parametrize("log", [RefusalError("you may not", 403), BrokenPipeError()])
async def test_what_ends_one_log_for_good_ends_all(
    log: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(log)) as raised:
        await followed(Cluster(job("Running"), log=log), monkeypatch)
    assert raised.value is log


async def test_a_log_that_cannot_be_had_is_told_once_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(*[job("Running")] * 5, job("Failed"), log=RefusalError("node is away", 500))
    assert not await followed(cluster, monkeypatch)
    said = capsys.readouterr().err.splitlines()
    assert said == ["duel-engine-0: node is away", "marljob duel is Failed"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("2026-01-01T00:00:00.000000001Z a b", ("2026-01-01T00:00:00.000000001Z", "a b")),
        ("2026-01-01T00:00:00.5+02:00 ", ("2026-01-01T00:00:00.5+02:00", "")),
        ("2026-01-01T00:00:00Z", ("2026-01-01T00:00:00Z", "")),
        ("unable to retrieve container logs", ("", "unable to retrieve container logs")),
        ("", ("", "")),
    ],
)
def test_a_line_is_taken_apart_where_it_has_a_time(line: str, found: tuple[str, str]) -> None:
    assert stamped(line) == found
