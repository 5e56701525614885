"""The supervised start of version 0, through a slot."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.contract.trainer.conftest import WAIT, Rigs, bind, refused

PAIRS = "".join(f'{{"question": "{n}", "answer": "{n % 3}"}}\n' for n in range(9))
WARM = {
    "data": {"uri": "file://pairs.jsonl"},
    "agent": "solver",
    "steps": 30,
    "batchSize": 4,
    "lr": 0.03,
}


async def test_the_warm_start_is_the_same_bit_for_bit(rigs: Rigs, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(PAIRS)
    checksums = []
    for seed in (1, 1, 2):
        rig = await rigs({"solver": {"warmStart": WARM}}, seed=seed)
        async with rig.serving() as trainer:
            bound = await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
            assert bound.weights.version == 0
            checksums.append(bound.weights.checksum)
            likely = await rig.distribution(bound.weights)
            assert chr(int(likely.argmax())) in "012"
    assert checksums[0] == checksums[1] != checksums[2]


async def test_a_warm_start_that_does_not_fit_names_field_and_record(
    rigs: Rigs, tmp_path: Path
) -> None:
    (tmp_path / "pairs.jsonl").write_text(PAIRS)
    rig = await rigs({"solver": {"warmStart": {**WARM, "prompt": "{task}"}}})
    async with rig.serving() as trainer:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await trainer.Bind(bind(epoch=await rig.epoch()), timeout=WAIT)
        code, text = refused(error)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "spec.policies[0].training.warmStart.prompt" in text
        assert "record 0" in text
