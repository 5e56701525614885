from pathlib import Path

import pytest
import torch

from flexmarl.contracts.job import Transport
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.runtime.errors import (
    CorruptError,
    InvalidRequestError,
    NotFoundError,
    StalePolicyError,
)
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.sets import TensorSet
from flexmarl.tensors.torch_bridge import (
    as_tensors,
    checksum_of,
    commit,
    layout_of,
    load_into,
    named_tensors,
)


class Tied(torch.nn.Module):
    """Embeddings tied to the head, a persistent and a passing buffer, a scalar, an empty one."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, width: int = 3) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, width, dtype=dtype)
        self.head = torch.nn.Linear(width, 5, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.empty = torch.nn.Parameter(torch.empty(0, 4))
        self.register_buffer("steps", torch.tensor([7]))
        self.register_buffer("cache", torch.zeros(2), persistent=False)


def publish(shm_dir: Path, module: torch.nn.Module, version: int) -> tuple[TensorSet, WeightsRef]:
    tensors = {WEIGHTS + name: tensor for name, tensor in named_tensors(module).items()}
    tensors["optimizer/step"] = torch.tensor(version, dtype=torch.float32)
    tensor_set = TensorSet.create(shm_dir, "job.solver", layout_of(tensors))
    committed = commit(tensor_set, version, tensors, {"updated": True})
    ref = WeightsRef(set="job.solver", version=version, checksum=committed.checksum)
    return tensor_set, ref


def test_each_tensor_counts_once_and_passing_buffers_do_not() -> None:
    assert sorted(named_tensors(Tied())) == ["embed.weight", "empty", "scale", "steps"]


def test_dtypes_shapes_and_values_survive_without_a_copy(tmp_path: Path) -> None:
    tensors = {
        "weights/bf16": torch.randn(3, 4).to(torch.bfloat16),
        "weights/f64": torch.randn(2, dtype=torch.float64).expand(3, 2),
        "weights/transposed": torch.randn(4, 3).T,
        "weights/scalar": torch.tensor(True),
        "weights/empty": torch.empty(2, 0, dtype=torch.int64),
    }
    with TensorSet.create(tmp_path, "job.solver", layout_of(tensors)) as tensor_set:
        committed = commit(tensor_set, 1, tensors)
        plain = {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items()}
        assert committed.checksum == checksum_of(plain)
        with tensor_set.reading(1) as views:
            found = as_tensors(tensor_set.layout, views)
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
            address = torch.frombuffer(views["weights/bf16"], dtype=torch.uint8).data_ptr()
            assert found["weights/bf16"].data_ptr() == address
            del found


@pytest.mark.parametrize("transport", [Transport.AUTO, Transport.SHM])
async def test_a_module_loads_a_version_and_proves_it_from_its_own_tensors(
    tmp_path: Path, transport: Transport
) -> None:
    source, target = Tied(), Tied()
    tensor_set, ref = publish(tmp_path, source, 4)
    with tensor_set:
        checksum, _, used = await load_into(target, ref, tmp_path, transport)
    assert (checksum, used) == (ref.checksum, "shm")
    assert checksum == checksum_of(named_tensors(target))
    assert torch.equal(target.head.weight, source.embed.weight)  # still tied, loaded once


async def test_what_does_not_fit_the_module_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    tensor_set, ref = publish(tmp_path, Tied(), 0)
    with tensor_set:
        wrong_dtype, wrong_shape, more = Tied(torch.float32), Tied(width=4), Tied()
        more.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
        less = Tied()
        del less.scale
        for module, message in (
            (wrong_dtype, r"'embed.weight' is BF16\[5, 3\] in the version and F32\[5, 3\]"),
            (wrong_shape, r"'embed.weight' is BF16\[5, 3\] in the version and BF16\[5, 4\]"),
            (more, "'extra' of the module is not in the version"),
            (less, "'scale' of the version is missing in the module"),
        ):
            before = checksum_of(named_tensors(module))
            with pytest.raises(InvalidRequestError, match=message):
                await load_into(module, ref, tmp_path)
            assert checksum_of(named_tensors(module)) == before


async def test_another_version_no_set_and_damaged_bytes_are_refused(tmp_path: Path) -> None:
    tensor_set, ref = publish(tmp_path, Tied(), 3)
    with tensor_set:
        other = WeightsRef(set=ref.set, version=2, checksum=ref.checksum)
        with pytest.raises(StalePolicyError, match="at version 3, not 2"):
            await load_into(Tied(), other, tmp_path)
        with pytest.raises(NotFoundError):
            await load_into(Tied(), WeightsRef(set="job.other", version=3), tmp_path)
        content = tensor_set.path.read_bytes()
        with tensor_set.reading(3) as views:
            position = content.rindex(bytes(views["weights/embed.weight"]))
        with tensor_set.path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([content[position] ^ 1]))
        with pytest.raises(CorruptError, match="the module holds weights with checksum"):
            await load_into(Tied(), ref, tmp_path)
