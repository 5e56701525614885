"""Runs the tests of tests/e2e/cluster on a real cluster, with images made from this working tree.

Which cluster: KUBECONFIG's if set; else kind's where docker runs; else a node of our own. A
cluster that this starts, this takes down; one that stood before stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from enum import StrEnum
from pathlib import Path

from .images import Builder
from .layout import REPO, Layout
from .node import Node
from .programs import MissingError

TESTS = "tests/e2e/cluster"
IMAGES = "images/images.py"
KIND = "flexmarl-e2e"
DEFINITION, NAMESPACE = "marljobs.flexmarl.io", "flexmarl-system"
"""What the tests install, and delete at their end."""


class Cluster(StrEnum):
    """What FLEXMARL_E2E tells the tests."""

    GIVEN = "given"
    KIND = "kind"
    NODE = "node"


def run(where: Layout, pytest_arguments: list[str], *, full: bool, gang: bool) -> int:
    select = ["-m", "cluster" if full else "cluster and not full"]
    files = [] if any(each.startswith(TESTS) for each in pytest_arguments) else [TESTS]
    pytest = [sys.executable, "-m", "pytest", *select, "--durations=15", *pytest_arguments, *files]
    with tempfile.TemporaryDirectory() as directory:
        images = Path(directory) / "images.yaml"
        match chosen():
            case Cluster.GIVEN:
                return _on_given(pytest, images)
            case Cluster.KIND:
                return _on_kind(pytest, images, Path(directory) / "kubeconfig")
            case Cluster.NODE:
                return _on_own(where, pytest, images, gang=gang)


def chosen() -> Cluster:
    if os.environ.get("KUBECONFIG"):
        return Cluster.GIVEN
    return Cluster.KIND if _docker_runs() else Cluster.NODE


def _on_given(pytest: list[str], images: Path) -> int:
    _refuse_if_served()
    registry = os.environ.get("REGISTRY")
    if not registry:
        raise MissingError(
            "KUBECONFIG is set: set REGISTRY too, to a registry that its nodes pull from, "
            "for example REGISTRY=registry.example/team"
        )
    _build()
    _python(IMAGES, "push", f"--registry={registry}", f"--output={images}")
    return _pytest(pytest, images, Cluster.GIVEN, {})


def _refuse_if_served() -> None:
    """Of what stands there the tests would leave nothing: they upgrade and uninstall it, and with
    the definition they delete every MARLJob."""
    if not (shutil.which("kubectl") and shutil.which("helm")):
        raise MissingError("KUBECONFIG is set: install kubectl and helm too")
    asked = [f"crd/{DEFINITION}", f"namespace/{NAMESPACE}", "--ignore-not-found", "-o", "name"]
    said = subprocess.run(
        ["kubectl", "get", *asked], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    if found := said.stdout.split():
        raise MissingError(
            f"the cluster of KUBECONFIG has {' and '.join(found)}: FlexMARL is in use there. These "
            "tests take a cluster that nobody else needs: they install, upgrade and uninstall the "
            "chart, delete all MARLJobs, and patch nodes. Unset KUBECONFIG, or clean that one first"
        )


def _on_kind(pytest: list[str], images: Path, kubeconfig: Path) -> int:
    """Images are loaded into the node, not pulled, so they are named by tag, not by digest."""
    if not shutil.which("kind"):
        raise MissingError(
            "docker runs, so kind is used: install kind, kubectl and helm, or set KUBECONFIG"
        )
    _build()
    known = subprocess.run(["kind", "get", "clusters"], check=True, capture_output=True, text=True)
    started = KIND not in known.stdout.split()
    if started:
        _command("kind", "create", "cluster", f"--name={KIND}", "--wait=120s")
    try:
        _command("kind", "export", "kubeconfig", f"--name={KIND}", f"--kubeconfig={kubeconfig}")
        tags = _tags()
        _command("kind", "load", "docker-image", f"--name={KIND}", *tags.values())
        images.write_text("".join(f"{name}: {tag}\n" for name, tag in tags.items()))
        return _pytest(pytest, images, Cluster.KIND, {"KUBECONFIG": str(kubeconfig)})
    finally:
        if started:
            _command("kind", "delete", "cluster", f"--name={KIND}")


def _on_own(where: Layout, pytest: list[str], images: Path, *, gang: bool) -> int:
    node, builder = Node(where), Builder(where)
    with node.in_use():
        started = node.up(gang=gang)
        try:
            with builder.alone():
                builder.build([])
                node.push([], builder, images)
            environment = {"FLEXMARL_E2E": Cluster.NODE, "FLEXMARL_E2E_IMAGES": str(images)}
            return node.run(pytest, **environment)
        finally:
            if started and not node.others_use_it():
                node.down()


def _tags() -> dict[str, str]:
    said = subprocess.run(
        [sys.executable, IMAGES, "tags"], cwd=REPO, check=True, capture_output=True, text=True
    )
    return dict(line.split(": ", 1) for line in said.stdout.splitlines())


def _pytest(pytest: list[str], images: Path, where: Cluster, more: dict[str, str]) -> int:
    environment = {"FLEXMARL_E2E": where, "FLEXMARL_E2E_IMAGES": str(images), **more}
    return subprocess.run(
        pytest, cwd=REPO, env={**os.environ, **environment}, check=False
    ).returncode


def _build() -> None:
    base = os.environ.get("BASE")  # as `make images` has it
    _python(IMAGES, "build", *([f"--base={base}"] if base else []))


def _python(*arguments: str) -> None:
    _command(sys.executable, *arguments)


def _command(*command: str) -> None:
    subprocess.run(command, cwd=REPO, check=True, stdout=sys.stderr)


def _docker_runs() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], check=False, capture_output=True).returncode == 0
