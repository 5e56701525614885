"""What a slot keeps hold of when a binding is given up, and what it keeps for later."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import torch
from tests.contract.trainer.conftest import WAIT, Rigs, bind

from flexmarl.trainer.home import Home, Resident
from flexmarl.trainer.policy import TrainedPolicy
from flexmarl.trainer.warm_start import warm_start

PAIRS = '{"question": "1", "answer": "2"}\n'
WARM = {"data": {"uri": "file://pairs.jsonl"}, "agent": "solver", "steps": 1, "batchSize": 1}


async def test_a_binding_that_was_given_up_does_not_lock_the_policy_out(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, go = await rigs(), threading.Event()
    take = Home.take

    def slow(self: Home, *args: Any, **kwargs: Any) -> Resident:
        go.wait(WAIT)
        return take(self, *args, **kwargs)

    monkeypatch.setattr(Home, "take", slow)
    async with rig.serving() as trainer:
        call = asyncio.ensure_future(rig.slot.bind("solver", 1, 0, "", discard=False))
        await asyncio.sleep(0)
        call.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        for discard in (False, True):
            again = await trainer.Bind(bind(epoch=2, discard=discard), timeout=WAIT)
            assert again.weights.version == 0


async def test_the_number_of_threads_is_set_before_the_warm_start(
    rigs: Rigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.jsonl").write_text(PAIRS)
    rig = await rigs({"solver": {"warmStart": WARM}})
    threads: list[int] = []

    def noted(*args: Any) -> None:
        threads.append(torch.get_num_threads())
        warm_start(*args)

    monkeypatch.setattr("flexmarl.trainer.home.warm_start", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        async with rig.serving() as trainer:
            await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
    finally:
        torch.set_num_threads(before)
    assert threads == [1]


async def test_models_that_are_not_bound_are_kept_up_to_a_size_together(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs({name: {} for name in "abc"})
    built: list[str] = []
    build = Home._build

    def noted(self: Home, name: str) -> TrainedPolicy:
        built.append(name)
        return build(self, name)

    monkeypatch.setattr(Home, "_build", noted)
    async with rig.serving() as trainer:
        await trainer.Bind(bind("a"), timeout=WAIT)
        assert rig.slot._bound is not None
        size = rig.slot._bound.resident.tensors.layout.nbytes
        monkeypatch.setattr("flexmarl.trainer.home.PARKED_BYTES", size + size // 2)
        for name in "babca":  # one is kept beside the bound one
            await trainer.Bind(bind(name, epoch=2), timeout=WAIT)
    assert "".join(built) == "abca"


async def test_memory_that_must_be_there_and_is_gone_is_not_made_again(
    rigs: Rigs, tmp_path: Path
) -> None:
    """Neither as version 0, nor from a checkpoint, nor by a trainer that has the policy parked."""
    rig = await rigs()
    async with rig.serving() as trainer:
        for version, directory in ((0, ""), (3, str(tmp_path))):
            request = bind(epoch=1, version=version, checkpoint=directory, kept=True)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await trainer.Bind(request, timeout=WAIT)
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
        await trainer.Bind(bind(epoch=2), timeout=WAIT)
        again = await trainer.Bind(bind(epoch=3, kept=True), timeout=WAIT)
        assert again.weights.version == 0
