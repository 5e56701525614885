"""A slot that was replaced and does not know it: nothing that it does counts."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.contract.trainer.conftest import (
    LOOSE,
    TOKEN,
    WAIT,
    Rig,
    Rigs,
    bind,
    fill,
    state_of,
    train,
    version_of,
)

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.experience.client import ExperienceClient

GROUPS = 2


async def refused(call: object) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    return error.value.code()


async def undisturbed(rigs: Rigs) -> dict[str, bytes]:
    rig = await rigs(LOOSE)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        await trainer.TrainStep(train(0, GROUPS), timeout=WAIT)
    return state_of(rig)


class Overtaken(ExperienceClient):
    """Whose policy gets a new epoch just before the commit: the state is published already."""

    incarnation = 1

    async def commit(self, policy: str, epoch: int, step: int, *, keep: int = 0) -> int:
        await self.take_epoch(policy, self.incarnation)
        return await super().commit(policy, epoch, step, keep=keep)


async def test_in_the_same_pod_a_new_slot_waits_for_the_memory_that_a_zombie_writes(
    rigs: Rigs,
) -> None:
    rig = await rigs(LOOSE)
    async with rig.serving() as zombie, rig.serving() as trainer:
        old = await rig.epoch()
        await zombie.Bind(bind(epoch=old), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        new = await rig.epoch()
        unavailable = grpc.StatusCode.UNAVAILABLE
        assert await refused(trainer.Bind(bind(epoch=new), timeout=WAIT)) is unavailable
        # Its next lease tells it; it lets go of the memory and has written nothing.
        step = zombie.TrainStep(train(0, GROUPS, epoch=old), timeout=WAIT)
        assert await refused(step) is grpc.StatusCode.ABORTED
        assert version_of(rig) == 0
        await trainer.Bind(bind(epoch=new), timeout=WAIT)
        again = zombie.TrainStep(train(0, GROUPS, epoch=old), timeout=WAIT)
        assert await refused(again) is grpc.StatusCode.FAILED_PRECONDITION
        # Told to bind again by an orchestrator as old as itself, it is refused.
        bound = zombie.Bind(bind(epoch=old), timeout=WAIT)
        assert await refused(bound) is grpc.StatusCode.ABORTED
        await trainer.TrainStep(train(0, GROUPS, epoch=new), timeout=WAIT)
    assert state_of(rig) == await undisturbed(rigs)


async def test_what_a_zombie_published_before_it_was_replaced_is_trained_once(rigs: Rigs) -> None:
    rig = await rigs(LOOSE)
    async with (
        Overtaken(rig.address, TOKEN) as overtaken,
        rig.serving(overtaken) as zombie,
        rig.serving() as trainer,
    ):
        old = await rig.epoch()
        await zombie.Bind(bind(epoch=old), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        step = zombie.TrainStep(train(0, GROUPS, epoch=old), timeout=WAIT)
        assert await refused(step) is grpc.StatusCode.ABORTED
        saved = state_of(rig)
        new = await rig.epoch()
        bound = await trainer.Bind(bind(epoch=new), timeout=WAIT)
        assert bound.weights.version == 1
        answer = await trainer.TrainStep(train(0, GROUPS, epoch=new), timeout=WAIT)
        assert answer.weights == bound.weights
        assert await rig.experience.commit("solver", new, 0) == 0  # acknowledged just now
    assert state_of(rig) == saved == await undisturbed(rigs)


async def test_in_another_pod_a_zombie_trains_for_itself_and_is_refused_at_the_commit(
    rigs: Rigs, tmp_path: Path
) -> None:
    rig = await rigs(LOOSE)
    there = rig.elsewhere(tmp_path / "elsewhere")
    async with (
        Overtaken(rig.address, TOKEN) as overtaken,
        there.serving(overtaken) as zombie,
        rig.serving() as trainer,
    ):
        old = await rig.epoch()
        await zombie.Bind(bind(epoch=old), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        step = zombie.TrainStep(train(0, GROUPS, epoch=old), timeout=WAIT)
        assert await refused(step) is grpc.StatusCode.ABORTED
        assert version_of(there) == 1  # which nobody announces
        new = await rig.epoch()
        bound = await trainer.Bind(bind(epoch=new), timeout=WAIT)
        assert bound.weights.version == 0
        answer = await trainer.TrainStep(train(0, GROUPS, epoch=new), timeout=WAIT)
        assert answer.metrics["tokens"] == 8  # the groups are still there: all of them
    assert state_of(rig) == await undisturbed(rigs)


async def test_an_epoch_from_before_is_refused_wherever_it_is_bound(
    rigs: Rigs, tmp_path: Path
) -> None:
    """An orchestrator of the past binds its epoch to a slot that knows nothing of the new one."""
    rig = await rigs(LOOSE)
    there: Rig = rig.elsewhere(tmp_path / "elsewhere")
    async with there.serving() as trainer:
        old = await rig.epoch()
        await rig.epoch()
        bound = trainer.Bind(bind(epoch=old), timeout=WAIT)
        assert await refused(bound) is grpc.StatusCode.ABORTED
        assert not list(there.settings.shm_dir.iterdir())


async def test_a_bind_of_an_orchestrator_that_was_replaced_undoes_nothing(rigs: Rigs) -> None:
    """It stood still between its epoch and its bind, while the job began anew; the slot it binds
    has been started again since."""
    rig = await rigs(LOOSE)
    zombie = await rig.epoch()
    async with rig.serving() as trainer:
        rig.incarnation = await rig.experience.take_incarnation()
        living = await rig.epoch()
        await trainer.Bind(bind(epoch=living), timeout=WAIT)
        await fill(rig, 0, GROUPS)
        await trainer.TrainStep(train(0, GROUPS, epoch=living), timeout=WAIT)
    trained = state_of(rig)
    async with rig.serving() as trainer:
        anew = trainer.Bind(bind(epoch=zombie, version=0, discard=True), timeout=WAIT)
        assert await refused(anew) is grpc.StatusCode.ABORTED
    assert state_of(rig) == trained == await undisturbed(rigs)


class Standing(ExperienceClient):
    """Whose policy gets a new epoch while it saves: its machine stands still meanwhile."""

    async def check_epoch(self, policy: str, epoch: int) -> None:
        if self.overtake is not None and self.looks:
            await self.overtake()
        self.looks += 1
        await super().check_epoch(policy, epoch)

    looks = -1  # the first is to bind
    overtake: Callable[[], Awaitable[object]] | None = None


async def test_a_zombie_that_saves_leaves_the_checkpoint_of_its_successor_alone(
    rigs: Rigs, tmp_path: Path
) -> None:
    rig = await rigs(LOOSE)
    there, directory = rig.elsewhere(tmp_path / "elsewhere"), tmp_path / "step" / "solver"

    def save(epoch: int) -> pb.SaveCheckpointRequest:
        return pb.SaveCheckpointRequest(policy="solver", epoch=epoch, directory=str(directory))

    async with (
        Standing(rig.address, TOKEN) as standing,
        there.serving(standing) as zombie,
        rig.serving() as trainer,
    ):
        old = await rig.epoch()
        await zombie.Bind(bind(epoch=old), timeout=WAIT)

        async def overtake() -> None:
            assert [entry.name for entry in directory.parent.iterdir()] == [
                f".solver.{old}.partial"
            ]
            standing.overtake = None
            new = await rig.epoch()
            await trainer.Bind(bind(epoch=new), timeout=WAIT)
            await fill(rig, 0, GROUPS)
            await trainer.TrainStep(train(0, GROUPS, epoch=new), timeout=WAIT)
            await trainer.SaveCheckpoint(save(new), timeout=WAIT)

        standing.overtake = overtake
        saving = zombie.SaveCheckpoint(save(old), timeout=WAIT)
        assert await refused(saving) is grpc.StatusCode.ABORTED
    assert json.loads((directory / "state.json").read_text())["version"] == 1
    assert [entry.name for entry in directory.parent.iterdir()] == ["solver"]
