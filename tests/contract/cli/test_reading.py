"""Runs of MARLJobs read through a real API server: by their orchestrator, by a pod of their own."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.contract.cli.conftest import Terminal
from tests.contract.cli.kubelet import Kubelet
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World

from flexmarl.controller.cache import Key
from flexmarl.controller.names import READER, labels

PROGRESS = {"phase": "Running", "step": 1, "steps": 2}
HANDLED = {"heard": signal.default_int_handler, "ignored": signal.SIG_IGN}
"""Here; a process that is started ignores what its parent does, and handles nothing else."""
READS = "app.kubernetes.io/name=flexmarl-reader"


def job(**spec: Any) -> dict[str, Any]:
    made = sound()
    made["spec"] |= {"store": {"url": "redis://store.invalid:6379"}, **spec}
    return made


async def started(world: World, node: Kubelet, made: dict[str, Any]) -> str:
    """A job that has written something; its run."""
    await world.look(await world.submit(made))
    found = await world.cluster.call("GET", f"{world.path}/tiny")
    run = f"tiny-{found['metadata']['uid'][:8]}"
    (node.claim / run).mkdir(parents=True)
    (node.claim / run / "progress.json").write_text(json.dumps(PROGRESS))
    (node.claim / run / "metrics.jsonl").write_text('{"step": 0}\n' * 2000)
    return run


async def bound(world: World, name: str) -> None:
    """Give the claim a volume."""
    metadata = {"name": f"{world.namespace}-{name}"}
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nowhere"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": world.namespace, "name": name},
    }
    volumes = "/api/v1/persistentvolumes"
    await world.cluster.call("POST", volumes, body={"metadata": metadata, "spec": spec})
    at = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/{name}"
    async with asyncio.timeout(60):
        phase = ""
        while phase != "Bound":
            await asyncio.sleep(0.1)
            phase = (await world.cluster.call("GET", at))["status"]["phase"]


async def test_a_report_is_taken_through_the_orchestrator_and_as_it_ends_from_the_claim(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    run = await started(world, node, job())
    said = await flexmarl("report", "tiny")
    assert (said.code, "nothing was written yet" in said.err) == (1, True), said
    await bound(world, "tiny-run")
    await node.run("tiny-orchestrator-x", labels("tiny", "orchestrator"))
    said = await flexmarl("report", "tiny")
    assert (said.code, said.out) == (0, f"runs/{run}/report.html\n"), said
    node.ending.add("tiny-orchestrator-x")
    reader, said = await asyncio.gather(node.take(READS), flexmarl("report", "tiny"))
    assert (said.code, said.out) == (0, f"runs/{run}/report.html\n"), said
    copied = flexmarl.folder / "runs" / run / "metrics.jsonl"
    assert copied.read_text() == (node.claim / run / "metrics.jsonl").read_text()
    assert not await world.cluster.listed("Pod", world.namespace, labels=READS)
    assert reader["spec"]["containers"][0]["image"] == "registry.invalid/flexmarl"


async def test_a_claim_of_the_users_own_can_be_read_after_the_job_was_deleted(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    template = {
        "spec": {
            "nodeSelector": {"disk": "here"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        }
    }
    made = job(
        checkpoint={"claim": {"name": "mine"}}, roles={"orchestrator": {"template": template}}
    )
    run = await started(world, node, made)
    claims = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims"
    key = Key(world.namespace, "tiny")
    assert (await world.look(key))["reason"] == "PodsNotReady"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await world.cluster.call("POST", claims, body={"metadata": {"name": "mine"}, "spec": spec})
    await bound(world, "mine")
    await world.look(key)
    claim = await world.cluster.call("GET", f"{claims}/mine")
    assert READER in claim["metadata"]["annotations"]
    assert "labels" not in claim["metadata"]
    await world.cluster.delete("MARLJob", world.namespace, "tiny")
    said = await flexmarl("report", "tiny")
    assert (said.code, "--claim" in said.err) == (1, True), said
    reader, said = await asyncio.gather(
        node.take(READS), flexmarl("report", "tiny", "--claim", "mine")
    )
    assert (said.code, said.out) == (0, f"runs/{run}/report.html\n"), said
    assert reader["spec"]["nodeSelector"] == {"disk": "here"}
    assert {"key": "gpu", "operator": "Exists"} in reader["spec"]["tolerations"]


async def test_a_quota_that_refuses_the_reader_is_named(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    await started(world, node, job())
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
    await world.until(Key(world.namespace, "tiny"), "Suspended")
    await bound(world, "tiny-run")
    await world.limit("little", {"limits.memory": "1Mi"})
    while True:  # until the quota is in force
        said = await flexmarl("report", "tiny", "--image", "registry.invalid/flexmarl")
        if "status unknown for quota" not in said.err:
            break
    assert said.code == 1
    assert "exceeded quota: little" in said.err
    assert "Raise that quota" in said.err


async def test_of_a_job_that_has_not_begun_there_is_no_report(
    world: World, flexmarl: Terminal
) -> None:
    await world.submit(job())
    said = await flexmarl("report", "tiny")
    assert (said.code, said.err.rpartition("; ")[2]) == (1, "marljob tiny is Pending\n"), said


@pytest.mark.parametrize("named", ["nothing", "tiny-run"])
async def test_what_is_not_there_is_told(world: World, flexmarl: Terminal, named: str) -> None:
    said = await flexmarl("report", "tiny", "--claim", named)
    assert (said.code, f"There is no claim {named}" in said.err) == (1, True), said


@contextmanager
def handling(number: signal.Signals, how: Any) -> Iterator[None]:
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("ctrl_c", ["heard", "ignored"])
async def test_a_command_that_is_ended_takes_the_pod_that_it_has_made_with_it(
    world: World, flexmarl: Terminal, node: Kubelet, ctrl_c: str
) -> None:
    """A script's shell has what it runs in the background ignore Ctrl-C."""
    await started(world, node, job())
    await world.change(f"{world.path}/tiny", {"spec": {"suspend": True}})
    await world.until(Key(world.namespace, "tiny"), "Suspended")
    await bound(world, "tiny-run")
    numbers = [signal.SIGTERM, signal.SIGHUP]
    if ctrl_c == "heard":
        numbers.append(signal.SIGINT)
    for number in numbers:
        with (
            handling(signal.SIGINT, HANDLED[ctrl_c]),
            handling(signal.SIGHUP, HANDLED["heard"]),  # whatever `nohup` these tests run under
        ):
            process = await flexmarl.start("report", "tiny", stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            made: list[Any] = []
            while not made:
                await asyncio.sleep(0.1)
                made = await world.cluster.listed("Pod", world.namespace, labels=READS)
            process.send_signal(number)
            await process.communicate()
        assert process.returncode == 130, number
        assert not await world.cluster.listed("Pod", world.namespace, labels=READS), number
