"""A policy's state as files: the Hugging Face layout plus optimizer and random state.

Written beside its place, synced, then put there: a directory under the final name is whole. Reading
checks every size and the weights' checksum before anything is believed. safetensors and JSON only.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flexmarl.models.causal_lm import save_model
from flexmarl.runtime.errors import InvalidRequestError, JobFailedError
from flexmarl.runtime.files import mend, put_in_place, sync
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.torch_bridge import checksum_of
from flexmarl.trainer.export import MODEL, OPTIMIZER, STATE, verified_state
from flexmarl.trainer.policy import TrainedPolicy

FORMAT = 1


class Made:
    """The checkpoint of one policy as it is made: `write` it, then `put_in_place` or `forget` it.

    JobFailedError: no room, or no right, to write.
    """

    def __init__(self, policy: TrainedPolicy, directory: Path, epoch: int) -> None:
        """An older `directory` is replaced. Each epoch writes beside it under a name of its own."""
        self._policy, self._directory = policy, directory
        self._partial = directory.with_name(f".{directory.name}.{epoch}.partial")

    def write(self, metadata: dict[str, Any]) -> list[str]:
        """The names of the files. `metadata` comes back from `load`."""
        with self._writing():
            self.forget()
            self._partial.mkdir(parents=True)
            return _write(self._policy, self._partial, metadata)

    def put_in_place(self) -> None:
        with self._writing():
            put_in_place(self._partial, self._directory)

    def forget(self) -> None:
        """What was written, and what earlier epochs left."""
        for partial in self._directory.parent.glob(f".{self._directory.name}.*.partial"):
            if _epoch(partial) <= _epoch(self._partial):
                shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            self.forget()
            raise JobFailedError(
                f"{self._directory}: the checkpoint of policy {self._policy.spec.name} cannot be "
                f"written: {error}; {_free(self._directory)}. The last complete checkpoint is "
                "untouched: make room, then resume"
            ) from error


def _epoch(partial: Path) -> int:
    return int(partial.name.removesuffix(".partial").rpartition(".")[2])


def _write(policy: TrainedPolicy, folder: Path, metadata: dict[str, Any]) -> list[str]:
    save_model(policy.model, policy.tokenizer, folder)
    state = policy.state()
    optimizer = _below("optimizer/", state)
    save_file({name: tensor.contiguous() for name, tensor in optimizer.items()}, folder / OPTIMIZER)
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    (folder / STATE).write_text(
        json.dumps(
            {
                "format": FORMAT,
                "policy": policy.spec.name,
                "version": policy.version,
                "updates": policy.updates,
                "checksum": checksum_of(weights_of(state)),
                "optimizer_checksum": checksum_of(optimizer),
                "metadata": metadata,
                "files": files,
            },
            indent=2,
        )
    )
    for file in folder.iterdir():
        sync(file)
    sync(folder)
    return sorted([*files, STATE])


def _free(directory: Path) -> str:
    there = next(parent for parent in directory.parents if parent.exists())
    return f"{shutil.disk_usage(there).free / 2**20:.1f} MiB are free in {there}"


def load(policy: TrainedPolicy, directory: Path, expected: str = "") -> dict[str, Any]:
    """Put the saved state into `policy`; returns the metadata.

    InvalidRequestError: a file is missing, cut short, of another model, or its weights are not
    those that were saved, or not the `expected` ones, by their checksum; the text names it.
    """
    mend(directory)
    saved = verified_state(directory)
    if saved.get("format") != FORMAT:
        raise InvalidRequestError(f"{directory / STATE}: format {saved.get('format')!r}, not 1")
    if saved["policy"] != policy.spec.name:
        raise InvalidRequestError(
            f"{directory}: a checkpoint of policy {saved['policy']!r}, not {policy.spec.name!r}"
        )
    if expected and saved.get("checksum") != expected:
        raise InvalidRequestError(
            f"{directory}: holds weights with checksum {saved.get('checksum')}, the checkpoint's "
            f"manifest names {expected}: they were written by another process since"
        )
    weights = _read(directory / MODEL)
    wanted = weights_of(policy.state())
    state = {WEIGHTS + name: weights[name] for name in wanted if name in weights}
    state |= {f"optimizer/{n}": tensor for n, tensor in _read(directory / OPTIMIZER).items()}
    try:
        policy.restore(saved["version"], state)
    except (KeyError, RuntimeError) as error:
        raise InvalidRequestError(
            f"{directory}: not the state of the model that the job describes: {error}"
        ) from error
    own = policy.state()
    for file, key, tensors in (
        (MODEL, "checksum", weights_of(own)),
        (OPTIMIZER, "optimizer_checksum", _below("optimizer/", own)),
    ):
        checksum = checksum_of(tensors)
        if checksum != saved.get(key):
            raise InvalidRequestError(
                f"{directory / file}: damaged: checksum {checksum}, saved was {saved.get(key)}"
            )
    return dict(saved["metadata"])


def weights_of(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part that is published, by state-dict name."""
    return _below(WEIGHTS, state)


def _below(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidRequestError(f"{path}: damaged: {error}") from error
