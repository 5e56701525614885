"""A checkpoint is whole or it is not there, and no damage of it goes unseen."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trainer.conftest import make_examples, make_policy

from flexmarl.contracts.sources import Dtype
from flexmarl.runtime.errors import InvalidRequestError, JobFailedError
from flexmarl.trainer import checkpoint
from flexmarl.trainer.policy import TrainedPolicy


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Longer ones cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save(policy: TrainedPolicy, directory: Path, metadata: dict[str, Any], epoch: int = 1) -> None:
    made = checkpoint.Made(policy, directory, epoch)
    made.write(metadata)
    made.put_in_place()


def test_what_an_earlier_epoch_began_is_cleared_away_and_a_later_ones_is_not(
    tmp_path: Path,
) -> None:
    policy, directory = make_policy(Dtype.FLOAT32), tmp_path / "solver"
    for epoch in (2, 10):
        checkpoint.Made(policy, directory, epoch).write({"epoch": epoch})  # killed there
    save(policy, directory, {"epoch": 9}, epoch=9)
    assert {entry.name for entry in tmp_path.iterdir()} == {"solver", ".solver.10.partial"}
    assert checkpoint.load(policy, directory) == {"epoch": 9}


def test_without_room_the_last_checkpoint_stays_and_the_error_says_where(tmp_path: Path) -> None:
    policy, directory = make_policy(Dtype.FLOAT32), tmp_path / "step" / "solver"
    save(policy, directory, {"good": True})
    with (
        files_up_to(4096),
        pytest.raises(JobFailedError, match=r"step/solver: .* cannot be written: .* MiB are free"),
    ):
        save(policy, directory, {"good": False})
    assert [entry.name for entry in directory.parent.iterdir()] == ["solver"]
    assert checkpoint.load(policy, directory) == {"good": True}


def test_a_flipped_byte_of_the_moments_is_seen(tmp_path: Path) -> None:
    policy = make_policy(Dtype.FLOAT32)
    policy.begin()
    policy.update(policy.fold(make_examples()).tokens)
    save(policy, tmp_path / "solver", {})
    file = tmp_path / "solver" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"optimizer\.safetensors: damaged: checksum"):
        checkpoint.load(policy, tmp_path / "solver")
