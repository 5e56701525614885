"""Whether a command means a run of this machine or a MARLJob of a cluster. Light to import."""

from __future__ import annotations

import os
from pathlib import Path

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.find import RUNS, find_run, is_run

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds who it is."""


def local_run(
    name: str | None, namespace: str | None, context: str | None, claim: str | None = None
) -> Path | None:
    """The run of this machine that is meant; None: a MARLJob of a cluster is. CommandError.

    A folder, or nothing, means this machine; so does a name that is a run here. Others are looked
    for on the cluster of the kubeconfig or of this pod, as everything is with a namespace, context
    or claim.
    """
    if namespace or context or claim:
        if name is None:
            where = f" -n {namespace}" if namespace else ""
            raise CommandError(
                f"Name the MARLJob, too. Which there are: kubectl get marljobs{where}", INVALID
            )
        return None
    here = name is None or is_run(RUNS / name) or Path(name).is_dir()
    return find_run(name) if here or not (kubeconfigs() or in_pod()) else None


def options(namespace: str, context: str | None) -> str:
    """For a command about the same place."""
    return f"--namespace {namespace}{f' --context {context}' if context else ''}"


def kubeconfigs() -> list[Path]:
    """Those that are there, in the order in which `kubectl` merges them."""
    places = [Path(place).expanduser() for place in kubeconfig().split(os.pathsep) if place]
    files = [place for place in places if place.is_file()]
    return [file for file in files if file.stat().st_size] or files


def kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def in_pod() -> bool:
    """Whether this runs in a pod that has an account of its cluster."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and (ACCOUNT / "token").is_file()
