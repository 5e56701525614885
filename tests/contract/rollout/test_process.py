"""The worker's own process with the experience service's and Valkey's: what is played is stored."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.contract.experience.filling import epoch_of

from flexmarl.contracts.v1 import rollout_pb2, rollout_pb2_grpc
from flexmarl.data.notes import Note
from flexmarl.experience.client import ExperienceClient
from flexmarl.runtime.grpc import channel, wait_ready

JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {name: worker}
spec:
  policies: [{name: solver, model: {uri: "random://llama?hidden=64&layers=2&heads=4"}}]
  agents: [{name: solver, policy: solver}]
  workflow: {name: single}
  reward: {name: exact-match}
  data: {uri: "file://tasks.jsonl"}
  steps: 9
  pipeline: {maxStaleness: 2, partialRollout: true}
"""
SECRET = "secret"


class Processes:
    """Starts processes of the job on unix sockets in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        (folder / "job.yaml").write_text(JOB)

    def address(self, name: str) -> str:
        return f"unix://{self._folder}/{name}.sock"

    def start(self, name: str, module: str) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "FLEXMARL_JOB_FILE": str(self._folder / "job.yaml"),
            "FLEXMARL_BASE_DIR": str(self._folder),
            "FLEXMARL_JOB_UID": "default/worker/1",
            "FLEXMARL_TOKEN": SECRET,
            "FLEXMARL_LISTEN": self.address(name),
            "FLEXMARL_EXPERIENCE": self.address("experience"),
            "FLEXMARL_STORE_URL": f"unix://:pw@{self._folder}/store.sock",
        }
        code = f"from {module} import main; main()"
        return self._stack.enter_context(
            _ended(subprocess.Popen([sys.executable, "-c", code], env=env))
        )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Any:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
async def processes(sockets: Path) -> AsyncIterator[Processes]:
    with ExitStack() as stack:
        made = Processes(sockets, stack)
        made.start("store", "flexmarl.experience.embedded")
        made.start("experience", "flexmarl.experience.process")
        yield made


def request(group: int, incarnation: int, engine: str) -> rollout_pb2.RunGroupRequest:
    asked = rollout_pb2.RunGroupRequest(
        task_id="t", task='{"question": "1+1", "answer": "ok"}', episodes=4, seed=group
    )
    asked.id.incarnation, asked.id.step, asked.id.index = incarnation, 1, group
    asked.routes.add(policy="solver", version=1, engines=[engine])
    return asked


async def test_what_is_played_can_be_leased_and_a_signal_drains(
    processes: Processes, small_engine: Any, serve_engine: Any
) -> None:
    worker = processes.start("worker", "flexmarl.rollout.process")
    await wait_ready(processes.address("worker"), 60)
    await wait_ready(processes.address("experience"), 60)
    engine, release = small_engine(), asyncio.Event()
    async with (
        serve_engine(engine, "engine") as address,
        ExperienceClient(processes.address("experience"), SECRET) as store,
        channel(processes.address("worker"), SECRET) as connection,
    ):
        stub = rollout_pb2_grpc.RolloutStub(connection)
        former, incarnation = await store.take_incarnation(), await store.take_incarnation()
        epoch = await epoch_of(store)
        finished = await stub.RunGroup(request(0, incarnation, address), timeout=30)
        assert [episode.agents["solver"].reward for episode in finished.episodes] == [1.0] * 4
        again = await stub.RunGroup(request(0, incarnation, address), timeout=30)
        assert again.duplicate

        lease = await store.lease("solver", epoch, 1)
        (group,) = lease.groups
        assert len(group.samples.sequences) == 4
        assert group.samples.sequences[0].token_ids[-3:].tolist() == [*b"ok", 256]

        with pytest.raises(grpc.aio.AioRpcError) as fenced:
            await stub.RunGroup(request(1, former, address), timeout=30)
        assert fenced.value.code() is grpc.StatusCode.ABORTED

        engine.wait = lambda _: release.wait()
        call = stub.RunGroup(request(2, incarnation, address), timeout=30)
        running = asyncio.ensure_future(call.code())
        async with asyncio.timeout(60):
            while len(engine.turns) < 12:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        worker.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        release.set()
        assert await running is grpc.StatusCode.OK
        assert await asyncio.to_thread(worker.wait, 30) == 0
        assert (await store.stored(1)).indexes == {0, 2}


@pytest.mark.parametrize("stored_meanwhile", [True, False])
async def test_a_zombie_worker_stores_nothing(
    processes: Processes, small_engine: Any, serve_engine: Any, stored_meanwhile: bool
) -> None:
    """It stood still while its group was issued again under the next incarnation."""
    zombie = processes.start("zombie", "flexmarl.rollout.process")
    processes.start("worker", "flexmarl.rollout.process")
    for name in ("zombie", "worker", "experience"):
        await wait_ready(processes.address(name), 60)
    engine = small_engine()
    async with (
        serve_engine(engine, "engine") as address,
        ExperienceClient(processes.address("experience"), SECRET) as store,
        channel(processes.address("zombie"), SECRET) as to_zombie,
        channel(processes.address("worker"), SECRET) as to_worker,
    ):
        former, epoch = await store.take_incarnation(), await epoch_of(store)
        release = asyncio.Event()
        engine.wait = lambda _: release.wait()
        stub = rollout_pb2_grpc.RolloutStub(to_zombie)
        late = asyncio.ensure_future(stub.RunGroup(request(0, former, address), timeout=60).code())
        async with asyncio.timeout(30):
            while len(engine.turns) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        zombie.send_signal(signal.SIGSTOP)
        release.set()
        engine.say = lambda _: "new"
        incarnation = await store.take_incarnation()
        again = rollout_pb2_grpc.RolloutStub(to_worker)
        if stored_meanwhile:
            await again.RunGroup(request(0, incarnation, address), timeout=30)
        zombie.send_signal(signal.SIGCONT)
        assert await late is grpc.StatusCode.ABORTED
        if not stored_meanwhile:
            assert (await store.stored(1)).indexes == frozenset()
            finished = await again.RunGroup(request(0, incarnation, address), timeout=30)
            assert not finished.duplicate
        (group,) = (await store.lease("solver", epoch, 1)).groups
        assert group.id.incarnation == incarnation
        assert bytes(group.samples.sequences[0].token_ids[-4:-1].tolist()) == b"new"


async def test_a_held_group_is_stored_in_its_place_unless_it_is_too_old_for_it(
    processes: Processes, small_engine: Any, serve_engine: Any
) -> None:
    processes.start("worker", "flexmarl.rollout.process")
    await wait_ready(processes.address("worker"), 60)
    await wait_ready(processes.address("experience"), 60)
    engine = small_engine()
    engine.cuts = [1]
    async with (
        serve_engine(engine, "engine") as address,
        ExperienceClient(processes.address("experience"), SECRET) as store,
        channel(processes.address("worker"), SECRET) as connection,
    ):
        stub = rollout_pb2_grpc.RolloutStub(connection)
        incarnation = await store.take_incarnation()
        epoch = await epoch_of(store)
        asked = request(7, incarnation, address)
        asked.hold, asked.routes[0].version, asked.routes[0].min_version = True, 3, 1
        finished = await stub.RunGroup(asked, timeout=30)
        assert (finished.oldest_version, finished.resumed_turns) == (1, 1)

        async def place(step: int) -> bool:
            asked_for = rollout_pb2.PlaceGroupRequest(played=asked.id)
            asked_for.place.incarnation, asked_for.place.step = incarnation, step
            return bool((await stub.PlaceGroup(asked_for, timeout=30)).duplicate)

        with pytest.raises(grpc.aio.AioRpcError, match="takes versions 2 to 4") as stale:
            await place(4)
        assert stale.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not await place(3)
        assert await place(3)
        assert Note.read((await store.stored(3)).notes[0]) == Note(drawn=(1, 7))
        (group,) = (await store.lease("solver", epoch, 3)).groups
        assert (group.id.step, group.id.index, group.samples.version) == (3, 0, 1)
        spans = [
            (span.version, span.end - span.start)
            for sequence in group.samples.sequences
            for turn in sequence.turns
            for span in turn.versions
        ]
        assert [tokens for version, tokens in spans if version == 1] == [1]
