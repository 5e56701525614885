"""A state as files: it goes on from them bit for bit, or they are refused; export loads."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
import torch
from tests.contract.trainer.conftest import (
    LOOSE,
    PROMPT,
    WAIT,
    Rigs,
    bind,
    fill,
    refused,
    state_of,
    train,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from flexmarl.contracts.v1 import trainer_pb2 as pb
from flexmarl.runtime.errors import InvalidRequestError, NotFoundError
from flexmarl.trainer.export import export


async def test_a_checkpoint_goes_on_bit_for_bit(rigs: Rigs, tmp_path: Path) -> None:
    rig, resumed = await rigs(LOOSE), await rigs(LOOSE)
    directory = tmp_path / "step-00000001" / "solver"
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 2)
        trained = await trainer.TrainStep(train(0, 2), timeout=WAIT)
        saved = await trainer.SaveCheckpoint(
            pb.SaveCheckpointRequest(policy="solver", epoch=1, directory=str(directory)),
            timeout=WAIT,
        )
        assert saved.version == 1
        assert set(saved.files) == {file.name for file in directory.iterdir()}
        await fill(rig, 1, 2)
        await trainer.TrainStep(train(1, 2), timeout=WAIT)
    async with resumed.serving() as trainer:
        bound = await trainer.Bind(
            bind(epoch=await resumed.epoch(), version=1, checkpoint=str(directory)), timeout=WAIT
        )
        assert bound.weights.checksum == trained.weights.checksum
        again = await trainer.TrainStep(train(0, 2), timeout=WAIT)  # of the run before
        for said in (again, trained):
            del said.metrics["store_seconds"]  # to which acknowledging once more adds
        assert again.metrics == trained.metrics
        await fill(resumed, 1, 2)
        await trainer.TrainStep(train(1, 2), timeout=WAIT)
    assert state_of(resumed) == state_of(rig)


async def test_a_roll_back_forgets_what_shared_memory_has(rigs: Rigs, tmp_path: Path) -> None:
    rig = await rigs(LOOSE)
    directory = str(tmp_path / "solver")
    async with rig.serving() as trainer:
        first = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await trainer.SaveCheckpoint(
            pb.SaveCheckpointRequest(policy="solver", epoch=1, directory=directory), timeout=WAIT
        )
        await fill(rig, 0, 1)
        await trainer.TrainStep(train(0, 1), timeout=WAIT)
        for checkpoint in (directory, ""):
            again = bind(epoch=await rig.epoch(), checkpoint=checkpoint, discard=True)
            back = await trainer.Bind(again, timeout=WAIT)
            assert back.weights == first.weights
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.Bind(bind(epoch=await rig.epoch(), version=7), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_checkpoint_of_other_weights_than_its_manifest_names_is_refused(
    rigs: Rigs, tmp_path: Path
) -> None:
    rig, other = await rigs(), await rigs()
    directory = str(tmp_path / "solver")
    async with rig.serving() as trainer:
        bound = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await trainer.SaveCheckpoint(
            pb.SaveCheckpointRequest(policy="solver", epoch=1, directory=directory), timeout=WAIT
        )
    async with other.serving() as trainer:
        saved = {"checkpoint": directory, "checksum": "other"}
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.Bind(bind(epoch=await other.epoch(), **saved), timeout=WAIT)
        code, text = refused(error)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "manifest names other" in text
        saved["checksum"] = bound.weights.checksum
        again = await trainer.Bind(bind(epoch=await other.epoch(), **saved), timeout=WAIT)
        assert again.weights.checksum == bound.weights.checksum


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.safetensors", "truncated"),
        ("optimizer.safetensors", "truncated"),
        ("model.safetensors", "changed"),
        ("state.json", "missing"),
        ("config.json", "missing"),
    ],
)
async def test_a_damaged_checkpoint_is_named_and_refused(
    rigs: Rigs, tmp_path: Path, file: str, damage: str
) -> None:
    rig, other = await rigs(), await rigs()
    directory = tmp_path / "solver"
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await trainer.SaveCheckpoint(
            pb.SaveCheckpointRequest(policy="solver", epoch=1, directory=str(directory)),
            timeout=WAIT,
        )
    path = directory / file
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:-8])
        case "changed":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        case "missing":
            path.unlink()
    async with other.serving() as trainer:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.Bind(
                bind(epoch=await other.epoch(), checkpoint=str(directory)), timeout=WAIT
            )
        code, text = refused(error)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert file in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_exported_directory_loads_and_gives_the_same_logits(
    rigs: Rigs, tmp_path: Path, dtype: str
) -> None:
    rig = await rigs(LOOSE, dtype=dtype)
    async with rig.serving() as trainer:
        await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        await fill(rig, 0, 2)
        trained = await trainer.TrainStep(train(0, 2), timeout=WAIT)
        await trainer.SaveCheckpoint(
            pb.SaveCheckpointRequest(
                policy="solver", epoch=1, directory=str(tmp_path / "step" / "solver")
            ),
            timeout=WAIT,
        )
        expected = await rig.distribution(trained.weights)
    names = export(tmp_path / "step", "solver", tmp_path / "out")
    assert {"config.json", "model.safetensors"} <= set(names)
    assert not {"state.json", "optimizer.safetensors"} & set(names)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(PROMPT.astype("int64"))[None]).logits
    assert torch.equal(torch.log_softmax(logits[0, -1], -1), expected)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"
    with pytest.raises(NotFoundError, match="no policy 'judge'; it holds solver"):
        export(tmp_path / "step", "judge", tmp_path / "other")
    with pytest.raises(InvalidRequestError, match="not empty"):
        export(tmp_path / "step", "solver", tmp_path / "out")
