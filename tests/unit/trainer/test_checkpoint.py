"""A checkpoint is whole or it is not there, and no damage of it goes unseen."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.trainer.conftest import make_examples, make_policy

from flexmarl.contracts.sources import Dtype
from flexmarl.runtime.errors import InvalidRequestError, JobFailedError
from flexmarl.trainer import checkpoint


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Longer ones cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_the_last_checkpoint_stays_and_the_error_says_where(tmp_path: Path) -> None:
    policy, directory = make_policy(Dtype.FLOAT32), tmp_path / "step" / "solver"
    checkpoint.save(policy, directory, {"good": True})
    with (
        files_up_to(4096),
        pytest.raises(JobFailedError, match=r"step/solver: .* cannot be written: .* MiB are free"),
    ):
        checkpoint.save(policy, directory, {"good": False})
    assert [entry.name for entry in directory.parent.iterdir()] == ["solver"]
    assert checkpoint.load(policy, directory) == {"good": True}


def test_a_flipped_byte_of_the_moments_is_seen(tmp_path: Path) -> None:
    policy = make_policy(Dtype.FLOAT32)
    policy.begin()
    policy.update(policy.fold(make_examples()).tokens)
    checkpoint.save(policy, tmp_path / "solver", {})
    file = tmp_path / "solver" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"optimizer\.safetensors: damaged: checksum"):
        checkpoint.load(policy, tmp_path / "solver")
