"""A policy's state as files: the Hugging Face layout plus optimizer and random state.

Written beside its place, synced, then renamed: a directory under the final name is whole. Reading
checks every size and the weights' checksum before anything is believed. safetensors and JSON only.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flexmarl.models.causal_lm import save_model
from flexmarl.runtime.errors import InvalidRequestError
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.torch_bridge import checksum_of
from flexmarl.trainer.export import MODEL, OPTIMIZER, STATE, sync, verified_state
from flexmarl.trainer.policy import TrainedPolicy

FORMAT = 1


def save(policy: TrainedPolicy, directory: Path, metadata: dict[str, Any]) -> list[str]:
    """Write `policy` as the directory itself; returns the names of its files.

    `metadata` comes back from `load`. An older directory of the same name is replaced.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(policy.model, policy.tokenizer, partial)
    state = policy.state()
    save_file(
        {
            name.removeprefix("optimizer/"): tensor.contiguous()
            for name, tensor in state.items()
            if name.startswith("optimizer/")
        },
        partial / OPTIMIZER,
    )
    files = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
    (partial / STATE).write_text(
        json.dumps(
            {
                "format": FORMAT,
                "policy": policy.spec.name,
                "version": policy.version,
                "updates": policy.updates,
                "checksum": checksum_of(weights_of(state)),
                "metadata": metadata,
                "files": files,
            },
            indent=2,
        )
    )
    for file in partial.iterdir():
        sync(file)
    sync(partial)
    if directory.exists():
        shutil.rmtree(directory)
    partial.rename(directory)
    sync(directory.parent)
    return sorted([*files, STATE])


def load(policy: TrainedPolicy, directory: Path) -> dict[str, Any]:
    """Put the saved state into `policy`; returns the metadata.

    InvalidRequestError: a file is missing, cut short, of another model, or its
    weights are not those that were saved; the text names it.
    """
    saved = verified_state(directory)
    if saved.get("format") != FORMAT:
        raise InvalidRequestError(f"{directory / STATE}: format {saved.get('format')!r}, not 1")
    if saved["policy"] != policy.spec.name:
        raise InvalidRequestError(
            f"{directory}: a checkpoint of policy {saved['policy']!r}, not {policy.spec.name!r}"
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
    checksum = checksum_of(weights_of(policy.state()))
    if checksum != saved["checksum"]:
        raise InvalidRequestError(
            f"{directory / MODEL}: damaged: checksum {checksum}, saved was {saved['checksum']}"
        )
    return dict(saved["metadata"])


def weights_of(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part that is published, by state-dict name."""
    return {
        name.removeprefix(WEIGHTS): tensor
        for name, tensor in state.items()
        if name.startswith(WEIGHTS)
    }


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidRequestError(f"{path}: damaged: {error}") from error
