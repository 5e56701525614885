"""Takes the model out of a checkpoint: a directory that AutoModelForCausalLM loads. No torch here.

The checkpoint's own names and sizes live here too, so that whoever only looks at one pays nothing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from flexmarl.runtime.errors import InvalidRequestError, NotFoundError
from flexmarl.runtime.files import sync

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
MODEL = "model.safetensors"
TRAINER_ONLY = frozenset({STATE, OPTIMIZER})


def export(checkpoint: Path, policy: str, out: Path) -> list[str]:
    """Copy `policy`'s model and tokenizer out of a step's checkpoint; returns the file names.

    `checkpoint` is the step's directory, that with the manifest. NotFoundError: no such policy in
    it. InvalidRequestError: a file is not what was saved, or `out` holds something already.
    """
    folder = checkpoint / policy
    if not folder.is_dir():
        found = sorted(entry.name for entry in checkpoint.glob("*/") if (entry / STATE).is_file())
        raise NotFoundError(
            f"{checkpoint}: no policy {policy!r}; it holds {', '.join(found) or 'none'}"
        )
    state = verified_state(folder, but=TRAINER_ONLY)
    check_empty(out)
    names = [name for name in state["files"] if name not in TRAINER_ONLY]
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in names:
        shutil.copyfile(folder / name, partial / name)
        sync(partial / name)
    if out.is_dir():
        out.rmdir()
    partial.rename(out)
    sync(out.parent)
    return sorted(names)


def check_empty(out: Path) -> None:
    """InvalidRequestError: there is something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidRequestError(f"{out}: exists already and is not empty")


def verified_state(folder: Path, *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What `state.json` says, once every file that it names is there in full; `but` some.

    InvalidRequestError: naming the file that is missing or cut short.
    """
    path = folder / STATE
    if not path.is_file():
        raise InvalidRequestError(f"{path}: missing; this is no complete checkpoint of a policy")
    try:
        state = json.loads(path.read_text())
        files = dict(state["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"{path}: damaged: {error!r}") from None
    for name, size in files.items():
        if name in but:
            continue
        file = folder / name
        if not file.is_file():
            raise InvalidRequestError(f"{file}: missing from the checkpoint")
        if file.stat().st_size != size:
            raise InvalidRequestError(
                f"{file}: damaged: {file.stat().st_size} bytes, {size} were saved"
            )
    return dict(state)
