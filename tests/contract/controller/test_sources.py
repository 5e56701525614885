"""Sources that are not there, or away, at a real API server; the test says what preflights say."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.contract.controller.conftest import World, ended, running
from tests.contract.controller.test_life import uid
from tests.contract.controller.test_looks import job

from flexmarl.contracts.preparation import CONTAINER, PASSING, Found, Kind, Report
from flexmarl.controller.names import ROLE_LABEL, Manifest
from flexmarl.runtime.process import HOPELESS


async def failed(world: World, *containers: Manifest, first: Manifest | None = None) -> str:
    """A pod of the orchestrator that has not failed yet, which then has."""
    end = time.monotonic() + 60
    while True:
        labels = f"{ROLE_LABEL}=orchestrator"
        for pod in await world.cluster.listed("Pod", world.namespace, labels=labels):
            if pod["status"].get("phase") != "Failed":
                name = str(pod["metadata"]["name"])
                await world.says(name, *containers, first=[first] if first else [], phase="Failed")
                return name
        assert time.monotonic() < end
        await asyncio.sleep(0.2)


async def test_a_preflight_that_may_try_again_spends_no_restart_of_the_orchestrator(
    world: World,
) -> None:
    key = await world.submit(job(roles={"orchestrator": {"restartPolicy": {"max": 0}}}))
    await world.look(key)
    away = Found(reason="SourceUnreachable", message="hub: down", kind=Kind.PASSING, fetching=True)
    waits = running(state={"waiting": {"reason": "PodInitializing"}}, ready=False)
    tries = running(CONTAINER, state=ended(PASSING, Report([away]).text()), ready=False)
    first = await failed(world, waits, first=tries)
    status = await world.until(key, "SourceUnreachable")
    assert (status["phase"], status["restartsTotal"]) == ("Starting", 0)
    second = await failed(world, running(state=ended(1, "a bug"), ready=False))
    assert second != first
    status = await world.until(key, "RestartsExceeded")
    assert "after 0 restarts: a bug" in status["message"]


GONE = Found(reason="SourceNotFound", message="s3://a/b: none", kind=Kind.HOPELESS, fetching=True)
WAITS = running(state={"waiting": {"reason": "PodInitializing"}}, ready=False)


def refused() -> Manifest:
    """A first container that was told for good that its source is not there."""
    return running(CONTAINER, state=ended(HOPELESS, Report([GONE]).text()), ready=False)


async def test_a_source_that_is_not_there_ends_a_job_whoever_is_told_first(world: World) -> None:
    key = await world.submit(job())
    await world.look(key)
    name = await failed(world, WAITS, first=refused())
    status = await world.until(key, "SourceNotFound")
    assert (status["phase"], status["message"]) == ("Failed", f"{name}: s3://a/b: none")


async def test_a_source_that_refuses_a_later_pod_ends_no_job_that_has_run(world: World) -> None:
    key = await world.submit(job())
    await world.runs(key)
    engine = await world.pod("engine")
    await world.says(engine, WAITS, first=[refused()], phase="Pending")
    status = await world.look(key)
    assert (status["phase"], status["reason"]) == ("Running", "SourceNotFound")
    assert "it goes on trying" in status["message"]
    done = running(CONTAINER, state={"terminated": {"exitCode": 0, "containerID": "test://1"}})
    await world.says(engine, running(), first=[done])
    assert (await world.look(key))["reason"] == "Running"


async def test_nor_does_one_that_refuses_the_orchestrator_when_it_comes_back(
    world: World,
) -> None:
    key = await world.submit(job(roles={"orchestrator": {"restartPolicy": {"max": 0}}}))
    await world.runs(key)
    gone = await world.pod("orchestrator")
    lost = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    at = f"/api/v1/namespaces/{world.namespace}/pods/{gone}/status"
    await world.change(at, {"status": {"phase": "Failed", "conditions": lost}})
    name = await failed(world, WAITS, first=refused())
    status = await world.until(key, "SourceNotFound")
    assert (status["phase"], status["restartsTotal"]) == ("Running", 0)
    assert status["message"].startswith(f"{name}: s3://a/b: none")
    assert await failed(world, WAITS, first=refused()) != name  # it was made anew, and no failure
    assert (await world.look(key))["phase"] == "Running"


async def test_an_orchestrator_whose_sources_are_away_tries_again_within_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job alone waits longer each time, and keeps every pod that failed."""
    monkeypatch.setattr("flexmarl.controller.plan.TRY_SECONDS", 0.0)
    key = await world.submit(job(roles={"orchestrator": {"restartPolicy": {"max": 0}}}))
    await world.look(key)
    away = Found(reason="SourceUnreachable", message="hub: down", kind=Kind.PASSING, fetching=True)
    tries = running(CONTAINER, state=ended(PASSING, Report([away]).text()), ready=False)
    seen = set()
    for _ in range(3):
        before = await uid(world, "Job", "tiny-orchestrator")
        seen.add(await failed(world, WAITS, first=tries))
        end = time.monotonic() + 60
        while await uid(world, "Job", "tiny-orchestrator") in ("", before):
            assert time.monotonic() < end
            status = await world.look(key)
            assert (status["phase"], status["restartsTotal"]) == ("Starting", 0)
            await asyncio.sleep(0.05)
    assert len(seen) == 3
    while seen & await world.names("Pod"):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    assert (await world.runs(key))["phase"] == "Running"
