"""`flexmarl logs` of pods whose node answers, slowly, in part, or no more."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.contract.cli.conftest import Terminal
from tests.contract.cli.kubelet import Kubelet
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World

from flexmarl.cli import cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.refusals import RefusalError
from flexmarl.controller.names import ROLES, Manifest, labels

ENGINE, WORKER = "tiny-engine-solver-0", "tiny-worker-x"


@pytest.fixture
async def job(world: World, node: Kubelet) -> Manifest:
    """With an engine and a worker that run."""
    await world.submit(sound())
    await node.run(ENGINE, labels("tiny", "engine"))
    await node.run(WORKER, labels("tiny", "rollout-worker"))
    node.logs[ENGINE, "main"] = ["one\ntwo\n"]
    node.logs[WORKER, "main"] = ["three\n"]
    found: Manifest = await world.cluster.call("GET", f"{world.path}/tiny")
    return found


async def ends(world: World, phase: str = "Complete") -> None:
    status = {
        "phase": phase,
        "reason": "Said",
        "message": "by a test",
        "observedGeneration": 1,
        "conditions": [],
    }
    await world.change(f"{world.path}/tiny/status", {"status": status})


@pytest.mark.usefixtures("job")
async def test_every_line_names_its_pod_and_a_role_may_have_the_job_files_name(
    flexmarl: Terminal, node: Kubelet
) -> None:
    said = await flexmarl("logs", "tiny")
    assert said.code == 0
    assert said.out.splitlines() == [f"{ENGINE} | one", f"{ENGINE} | two", f"{WORKER} | three"]
    for role in ("worker", "rollout-worker"):
        assert (await flexmarl("logs", "tiny", "--role", role)).out == f"{WORKER} | three\n"
    said = await flexmarl("logs", "tiny", "--role", "workers")
    assert (said.code, 'did you mean "rollout-worker"' in said.err) == (2, True), said


@pytest.mark.usefixtures("job")
async def test_a_pod_that_is_gone_ends_nobody_elses_lines(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    del node.logs[ENGINE, "main"]
    await ends(world)
    for follow in ((), ("--follow",)):
        said = await flexmarl("logs", "tiny", *follow)
        assert (said.code, said.out) == (0, f"{WORKER} | three\n")
        assert said.err.startswith(f"{ENGINE}: ")


@pytest.mark.usefixtures("job")
async def test_a_reader_of_lines_that_has_seen_enough_ends_it(
    flexmarl: Terminal, node: Kubelet
) -> None:
    node.logs[ENGINE, "main"] = ["one\n" * 5000, 0.5] * 200
    ours, its = os.pipe()
    process = await flexmarl.start("logs", "tiny", "--follow", stdout=its)
    os.close(its)
    with os.fdopen(ours, "rb") as lines:
        first = await asyncio.to_thread(lines.readline)
    _, said = await process.communicate()
    assert first.decode() in (f"{ENGINE} | one\n", f"{WORKER} | three\n")
    assert (process.returncode, said) == (0, b"")


@pytest.mark.usefixtures("job")
async def test_a_line_may_be_long(flexmarl: Terminal, node: Kubelet) -> None:
    node.logs[ENGINE, "main"] = ["x" * 300_000, "x" * 300_000, "\nend"]
    said = await flexmarl("logs", "tiny", "--role", "engine")
    assert [len(line) for line in said.out.splitlines()] == [len(ENGINE) + 3 + 600_000, 26]


@pytest.mark.usefixtures("job")
async def test_a_pod_that_is_being_prepared_shows_what_prepares_it(
    flexmarl: Terminal, node: Kubelet
) -> None:
    first = [{"name": "preflight", "image": "registry.invalid/flexmarl"}]
    await node.run("tiny-trainer-0", labels("tiny", "trainer"), initContainers=first)
    node.logs["tiny-trainer-0", "preflight"] = ["fetching\n"]
    await node.says(
        "tiny-trainer-0",
        "Pending",
        preflight={"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        main={"waiting": {"reason": "PodInitializing"}},
    )
    said = await flexmarl("logs", "tiny", "--role", "trainer")
    assert said.out == "tiny-trainer-0 preflight | fetching\n"


@pytest.mark.usefixtures("job")
async def test_a_log_may_take_long_but_not_be_silent(
    world: World, node: Kubelet, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(cluster, "SECONDS", 2.0)
    piece = "x" * 99 + "\n"
    node.logs[ENGINE, "main"] = [piece * 1000, 1.0] * 4
    async with connected(world.namespace, None) as here:
        assert len([line async for line in here.log(ENGINE, "main")]) == 4000
        node.logs[ENGINE, "main"] = [piece * 1000, 6.0, piece]
        with pytest.raises(RefusalError, match="the log broke off: Timeout"):
            assert len([line async for line in here.log(ENGINE, "main")]) == 0


async def test_of_pods_that_are_gone_the_kept_end_is_shown_as_far_as_wanted(
    world: World, flexmarl: Terminal
) -> None:
    await world.submit(sound())
    roles = {"tiny-worker-x.log": "rollout-worker", "tiny-trainer-0.log": "trainer"}
    body = {
        "metadata": {"name": "tiny-evidence", "annotations": {ROLES: json.dumps(roles)}},
        "data": {"tiny-worker-x.log": "one\ntwo\n", "tiny-trainer-0.log": "three\nfour\n"},
    }
    at = f"/api/v1/namespaces/{world.namespace}/configmaps"
    await world.cluster.call("POST", at, body=body)
    said = await flexmarl("logs", "tiny", "--tail", "1")
    assert said.out.splitlines() == ["tiny-trainer-0 | four", "tiny-worker-x | two"]
    assert "has no pods" in said.err
    assert (await flexmarl("logs", "tiny", "--role", "worker")).out.count("tiny-worker-x | ") == 2
