"""Whether a command means a run of this machine or a MARLJob of a cluster. Light to import."""

from __future__ import annotations

import os
from pathlib import Path

from flexmarl.cli.console import CommandError
from flexmarl.cli.find import RUNS, find_run, is_run


def local_run(
    name: str | None, namespace: str | None, context: str | None, claim: str | None = None
) -> Path | None:
    """The run of this machine that is meant; None: a MARLJob of a cluster is. CommandError.

    A folder, or nothing, means this machine; so does a name that is a run here. Others are looked
    for on the cluster of the kubeconfig, as everything is with a namespace, context or claim.
    """
    if namespace or context or claim:
        if name is None:
            raise CommandError("Name the MARLJob, too: flexmarl status NAME --namespace ...")
        return None
    if name is None or is_run(RUNS / name) or Path(name).is_dir() or not has_kubeconfig():
        return find_run(name)
    return None


def has_kubeconfig() -> bool:
    """Whether a cluster is named at all."""
    places = kubeconfig().split(os.pathsep)
    return any(Path(place).expanduser().is_file() for place in places if place)


def kubeconfig() -> str:
    """One file, or several as `kubectl` merges them."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"
