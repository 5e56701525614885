"""`flexmarl logs --follow`: over restarts, new pods and broken connections, to the job's end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.contract.cli.conftest import Said, Terminal
from tests.contract.cli.kubelet import Kubelet
from tests.contract.cli.test_logs import ends
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World

from flexmarl.cli import following
from flexmarl.controller.names import labels

TRAINER, ENGINE = "tiny-trainer-0", "tiny-engine-solver-0"
RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0}}
WAITS = {"waiting": {"reason": "PodInitializing"}}


@pytest.fixture
async def job(world: World) -> None:
    await world.submit(sound())


@asynccontextmanager
async def followed(flexmarl: Terminal, *more: str) -> AsyncIterator[asyncio.Task[Said]]:
    async with asyncio.timeout(60):
        task = asyncio.create_task(flexmarl("logs", "tiny", "--follow", *more))
        yield task
        await task


async def read(node: Kubelet, pod: str, container: str = "main", times: int = 1) -> None:
    """Wait until that log was asked for so many times."""
    about = {"pod": pod, "container": container}
    found = 0
    while found < times:
        await asyncio.sleep(0.05)
        found = sum(about.items() <= one.items() for one in node.asked)


@pytest.mark.usefixtures("job")
async def test_it_goes_on_from_what_prepares_a_pod_to_main_and_over_its_restart(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    first = [{"name": "preflight", "image": "registry.invalid/flexmarl"}]
    await node.run(TRAINER, labels("tiny", "trainer"), initContainers=first)
    node.logs[TRAINER, "preflight"] = ["fetching\n", 1.0, "fetched\n"]
    node.logs[TRAINER, "main"] = ["one\n"]
    await node.says(TRAINER, "Pending", preflight=RUNS, main=WAITS)
    async with followed(flexmarl) as said:
        await read(node, TRAINER, "preflight")
        await node.says(TRAINER, "Running", preflight=ENDED, main=RUNS)
        await read(node, TRAINER)
        node.logs[TRAINER, "main"] = ["two\n"]
        await node.says(TRAINER, "Running", preflight=ENDED, main=RUNS, restarts=1)
        await read(node, TRAINER, times=2)
        await ends(world)
    assert said.result().out.splitlines() == [
        f"{TRAINER} preflight | fetching",
        f"{TRAINER} preflight | fetched",
        f"{TRAINER} | one",
        f"{TRAINER} | two",
    ]
    assert said.result().code == 0


@pytest.mark.usefixtures("job")
async def test_pods_that_come_later_are_read_from_their_first_line(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    await node.run(TRAINER, labels("tiny", "trainer"))
    node.logs[TRAINER, "main"] = ["three\n", 2.0]
    async with followed(flexmarl, "--tail", "1") as said:
        await read(node, TRAINER)
        node.logs[ENGINE, "main"] = ["one\n", "two\n"]
        await node.run(ENGINE, labels("tiny", "engine"))
        await read(node, ENGINE)
        await world.cluster.delete("Pod", world.namespace, ENGINE)
        node.logs[ENGINE, "main"] = ["of its successor\n"]
        await node.run(ENGINE, labels("tiny", "engine"))
        await read(node, ENGINE, times=2)
        await ends(world)
    tails = [one.get("tailLines") for one in node.asked]
    assert (tails[0], {*tails[1:]}) == ("1", {None})
    assert {f"{ENGINE} | {text}" for text in ("one", "two", "of its successor")} <= {
        *said.result().out.splitlines()
    }


@pytest.mark.usefixtures("job")
async def test_what_breaks_off_is_taken_up_without_a_line_lost_or_repeated(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    await node.run(TRAINER, labels("tiny", "trainer"))
    node.logs[TRAINER, "main"] = ["one\ntwo\n", 0.2, None, "three\n", 1.0]
    async with followed(flexmarl) as said:
        await read(node, TRAINER, times=2)
        await ends(world)
    assert said.result().out == "".join(f"{TRAINER} | {n}\n" for n in ("one", "two", "three"))
    assert "sinceTime" in node.asked[1]


@pytest.mark.usefixtures("job")
async def test_a_job_without_pods_is_waited_for_and_its_end_decides(
    world: World, flexmarl: Terminal, node: Kubelet
) -> None:
    async with followed(flexmarl) as said:
        await ends(world, "Suspended")
        await asyncio.sleep(2)
        await ends(world, "Failed")
    assert said.result().code == 1
    assert "Suspended (Said: by a test); its pods are waited for" in said.result().err
    assert said.result().err.endswith("marljob tiny is Failed (Said: by a test)\n")


@pytest.mark.usefixtures("job")
async def test_it_ends_with_a_job_that_is_deleted_also_when_another_takes_its_name(
    world: World, flexmarl: Terminal, node: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ENDING_SECONDS", 1.0)
    await node.run(TRAINER, labels("tiny", "trainer"))
    node.logs[TRAINER, "main"] = ["one\n", 60.0]
    async with followed(flexmarl) as said:
        await read(node, TRAINER)
        await world.cluster.delete("MARLJob", world.namespace, "tiny")
        await world.submit(sound())
        await world.cluster.delete("Pod", world.namespace, TRAINER)
    assert (said.result().code, said.result().out) == (1, f"{TRAINER} | one\n")
    assert said.result().err.endswith("marljob tiny was deleted\n")


@pytest.mark.usefixtures("job")
async def test_ctrl_c_ends_it_without_a_word(flexmarl: Terminal, node: Kubelet) -> None:
    await node.run(TRAINER, labels("tiny", "trainer"))
    node.logs[TRAINER, "main"] = ["one\n", 60.0]
    process = await flexmarl.start("logs", "tiny", "--follow", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == f"{TRAINER} | one\n".encode()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        rest = await process.communicate()
    assert (process.returncode, *rest) == (130, b"", b"")
