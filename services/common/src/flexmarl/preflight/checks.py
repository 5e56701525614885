"""What a pod can tell of itself before its process starts: volumes, shared memory, GPUs."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flexmarl.contracts.preparation import Found, Kind, State

DEVICES = {
    "nvidia.com/gpu": ("", re.compile(r"nvidia\d+")),
    "amd.com/gpu": ("dri", re.compile(r"renderD\d+")),
}
"""Resource -> folder below /dev and names of its devices; of others nobody knows how they look."""
FREE_BYTES = 16 << 20
"""The least that a volume must have."""


def volumes(folders: Iterable[str]) -> Iterator[Found]:
    """Those that cannot be written."""
    for folder in folders:
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path, buffering=0) as probe:  # other pods look, too
                probe.write(b"x")
        except OSError as error:
            says = (
                f"{folder} cannot be written by user {os.getuid()}: {error.strerror}; its volume "
                "must be writable for the pod's fsGroup, and have room"
            )
            yield Found(reason="VolumeNotWritable", message=says, kind=Kind.PASSING)
            continue
        total, free = space(path)
        if total and free < FREE_BYTES:
            says = f"{folder} has {free >> 20} MiB free; empty its volume or make it larger"
            yield Found(reason="VolumeFull", message=says, kind=Kind.PASSING)


def space(folder: Path) -> tuple[int, int]:
    """Bytes of its volume, and those that are free; 0, 0 of file systems that do not tell."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def gpus(wanted: int, resource: str, dev: Path = Path("/dev")) -> Iterator[Found]:
    """A warning where fewer devices are to be seen than the pod was given: the process goes on
    with what there is, and resources may be shares of one device."""
    folder, names = DEVICES.get(resource, ("", None))
    if not wanted or names is None:
        return
    there = dev / folder
    seen = [name for name in os.listdir(there) if names.fullmatch(name)] if there.is_dir() else []
    if len(seen) < wanted:
        says = (
            f"{wanted} {resource} given, {len(seen)} devices to be seen; see that the node's "
            "device plugin and container runtime work together (for NVIDIA, the runtime class)"
        )
        yield Found(reason="GPUsNotVisible", message=says, kind=Kind.WARNING)


def states(
    wanted: Iterable[State], parameters: Mapping[str, int], *, together: bool, shm: int, run: int
) -> Iterator[Found]:
    """What shared memory of `shm` bytes, or `run` free bytes for checkpoints, are too small for.

    `parameters` by policy. Shared memory holds two versions of a state, a checkpoint one. Pure.
    """
    sizes = {one.policy: one.parameter_bytes * parameters.get(one.policy, 0) for one in wanted}
    if not sizes:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    once = sum(sizes.values()) if together else sizes[largest]
    who = f"the states of {', '.join(sizes)} take" if together else f"the state of {largest} takes"
    if shm and 2 * once > shm:
        says = (
            f"shared memory of {mib(shm)} is too small: {who} {mib(2 * once)} (two versions of "
            f"weights and optimizer); create the job anew with spec.shm.size of at least "
            f"{mib(2 * once + (64 << 20))}"
        )
        yield Found(reason="SharedMemoryTooSmall", message=says, kind=Kind.HOPELESS)
    if run and sizes[largest] > run:
        says = (
            f"the run's volume has {mib(run)} free, a checkpoint of {largest} takes "
            f"{mib(sizes[largest])}; give spec.checkpoint.claim a larger one, or empty it"
        )
        yield Found(reason="VolumeFull", message=says, kind=Kind.PASSING)


def mib(count: int) -> str:
    """Rounded up, as a Quantity."""
    return f"{-(-count >> 20)}Mi"


def parameters_in(folder: Path) -> int:
    """Of a model in Hugging Face's layout, out of its files' heads; 0 where they cannot be read."""
    config = _object(folder / "config.json")
    tied = bool(config.get("tie_word_embeddings"))
    return sum(_elements(path, tied=tied) for path in folder.glob("*.safetensors"))


def _elements(path: Path, *, tied: bool) -> int:
    try:
        with path.open("rb") as file:
            head = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), 100 << 20)))
        found = 0
        for name, tensor in head.items():
            if name == "__metadata__" or (tied and name == "lm_head.weight"):
                continue
            count = 1
            for size in tensor["shape"]:
                count *= int(size)
            found += count
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0  # whoever loads it says what is wrong with it
    return found


def _object(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
