"""Which logs of pods are shown, and what one that cannot be read does to the others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.commands import logs
from flexmarl.cli.console import CommandError
from flexmarl.cli.podlogs import ROLES, Wanted, container_of, kept_lines, show_pods
from flexmarl.cli.refusals import RefusalError
from flexmarl.controller.names import ENGINE, WORKER
from flexmarl.controller.names import ROLES as KEPT_ROLES

RUNS: dict[str, Any] = {"state": {"running": {"startedAt": "now"}}}
WAITS: dict[str, Any] = {"state": {"waiting": {"reason": "PodInitializing"}}}
ENDED: dict[str, Any] = {"state": {"terminated": {"exitCode": 0}}}
AGAIN: dict[str, Any] = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1}},
}


def pod(name: str = "duel-engine-0", **containers: dict[str, Any]) -> dict[str, Any]:
    containers = containers or {"main": RUNS}
    first = [one for one in containers if one != "main"]
    told = {one: {"name": one, **status} for one, status in containers.items()}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main"}],
            "initContainers": [{"name": one} for one in first],
        },
        "status": {
            "phase": "Pending",
            "containerStatuses": [told["main"]],
            "initContainerStatuses": [told[one] for one in first],
        },
    }


@pytest.mark.parametrize(
    ("containers", "shown", "before"),
    [
        ({"main": RUNS}, "main", ""),
        ({"main": AGAIN}, "main", "main"),
        ({"preflight": ENDED, "main": RUNS}, "main", ""),
        ({"preflight": RUNS, "main": WAITS}, "preflight", ""),
        ({"preflight": AGAIN, "main": WAITS}, "preflight", "preflight"),
        ({"preflight": AGAIN, "main": AGAIN}, "main", "main"),
        ({"preflight": ENDED, "weights": RUNS, "main": WAITS}, "weights", ""),
        ({"preflight": WAITS, "main": WAITS}, "", ""),
    ],
)
def test_until_main_has_started_what_prepares_the_pod_is_shown(
    containers: dict[str, Any], shown: str, before: str
) -> None:
    assert container_of(pod(**containers), previous=False) == shown
    assert container_of(pod(**containers), previous=True) == before


def test_the_job_files_word_for_a_role_is_understood() -> None:
    assert logs.ALIASES["worker"] == WORKER
    assert {logs.ALIASES.get(one, one) for one in ("worker", "engine", "trainer")} <= set(ROLES)


def test_what_was_kept_is_found_by_its_role_whatever_its_pod_is_called() -> None:
    roles = {"long-name-77aa0b1c-0.log": ENGINE, "long-name-0f3cd2e1-0.log": WORKER}
    kept = {
        "metadata": {"annotations": {KEPT_ROLES: json.dumps(roles)}},
        "data": dict.fromkeys(roles, "words"),
    }
    assert list(kept_lines(kept, Wanted(ENGINE))) == ["long-name-77aa0b1c-0 | words"]


def test_the_end_of_what_was_kept_is_as_long_as_wanted() -> None:
    roles = {"duel-worker-x.log": WORKER, "duel-engine-0.log": ENGINE}
    kept = {
        "metadata": {"annotations": {KEPT_ROLES: json.dumps(roles)}},
        "data": {"duel-worker-x.log": "1\n2\n3", "duel-engine-0.log": "4\n5"},
    }
    every = ["duel-engine-0 | 4", "duel-engine-0 | 5", *(f"duel-worker-x | {n}" for n in "123")]
    assert list(kept_lines(kept, Wanted())) == every
    assert list(kept_lines(kept, Wanted(tail=1))) == [every[1], every[4]]
    assert list(kept_lines(kept, Wanted(WORKER, 2))) == every[3:]


class Logs:
    """Of a cluster: what a pod's log holds, or how reading it fails."""

    def __init__(self, **pods: str | Exception) -> None:
        self.pods = pods

    async def log(self, name: str, container: str, **how: Any) -> AsyncIterator[str]:
        found = self.pods[name]
        if isinstance(found, Exception):
            raise found
        for line in found.splitlines():
            yield line


async def shown(**pods: str | Exception) -> bool:
    cluster = cast(Cluster, Logs(**pods))
    return await show_pods(cluster, [pod(name) for name in pods], Wanted())


@pytest.mark.parametrize(("status", "fine"), [(404, True), (500, False), (0, False)])
async def test_a_log_that_cannot_be_read_ends_nobody_elses(
    status: int, fine: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await shown(a="1", b=RefusalError("it broke off", status), c="2") is fine
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == ["a | 1", "c | 2"]
    assert said.err == "b: it broke off\n"


@pytest.mark.parametrize(
    "error", [RefusalError("you may not", 403), CommandError("no cluster"), BrokenPipeError()]
)
async def test_what_ends_all_of_them_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await shown(a=error, b=error)
    assert raised.value is error
