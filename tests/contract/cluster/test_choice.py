"""Which cluster `make e2e` takes, and that it leaves one of kind as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cluster.e2e import Cluster, chosen, run
from tests.cluster.layout import layout
from tests.cluster.programs import MissingError

Calls = Callable[[], list[str]]
SCRIPT = """#!/bin/sh
echo "${{0##*/}} $*" >>{log}
{does}
"""
CREATED = "kind create cluster --name=flexmarl-e2e --wait=120s"
DELETED = "kind delete cluster --name=flexmarl-e2e"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked of the programs of `stands_in`, in order."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    log = tmp_path / "calls"
    log.touch()
    return lambda: log.read_text().splitlines()


def stands_in(folder: Path, programs: Mapping[str, str]) -> None:
    """Neither docker nor kind is on every machine: programs of these names do this, in sh."""
    for name, does in programs.items():
        (folder / name).write_text(SCRIPT.format(log=folder / "calls", does=does))
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("kubeconfig", "docker", "cluster"),
    [
        ("/somewhere", "exit 0", Cluster.GIVEN),
        ("/somewhere", "exit 1", Cluster.GIVEN),
        ("", "exit 0", Cluster.KIND),
        (None, "exit 0", Cluster.KIND),
        (None, "exit 1", Cluster.NODE),
    ],
)
def test_a_kubeconfig_comes_before_kind_and_kind_before_a_node_of_our_own(
    calls: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kubeconfig: str | None,
    docker: str,
    cluster: Cluster,
) -> None:
    stands_in(tmp_path, {"docker": docker})
    if kubeconfig is not None:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
    assert chosen() == cluster
    assert calls() == ([] if cluster is Cluster.GIVEN else ["docker info"])


def test_without_docker_a_node_of_our_own_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert chosen() is Cluster.NODE


@pytest.mark.parametrize("base", ["", "mirror.example/python:3.12"])
def test_a_cluster_of_kind_is_made_gets_our_images_and_goes_again(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setenv("BASE", base)
    assert on_kind(tmp_path, "another", "--version") == 0
    said = calls()
    builds = [each for each in said if each.startswith("docker build ")]
    assert len(builds) == 2
    assert all((f"BASE={base} " in each) == bool(base) for each in builds)
    [loaded] = [each for each in said if each.startswith("kind load ")]
    tags = [each.partition(" -t ")[2].split()[0] for each in builds]
    assert loaded == f"kind load docker-image --name=flexmarl-e2e {' '.join(tags)}"
    assert said.index(CREATED) < said.index(loaded) < said.index(DELETED)


def test_a_cluster_of_kind_that_stood_before_stays(calls: Calls, tmp_path: Path) -> None:
    assert on_kind(tmp_path, "flexmarl-e2e", "--version") == 0
    assert {CREATED, DELETED} & {*calls()} == set()


def test_a_cluster_of_kind_goes_also_when_tests_fail(calls: Calls, tmp_path: Path) -> None:
    assert on_kind(tmp_path, "", "--no-such-option") != 0
    assert calls()[-1] == DELETED


def test_docker_without_kind_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    stands_in(tmp_path, {"docker": "exit 0"})
    with pytest.raises(MissingError, match="install kind"):
        run(layout(), [], full=False, gang=True)


def on_kind(folder: Path, there: str, *pytest_arguments: str) -> int:
    """The exit code, where kind has this cluster."""
    kind = f'[ "$1" = get ] && echo {there}; exit 0'
    stands_in(folder, {"docker": "exit 0", "kind": kind})
    return run(layout(), [*pytest_arguments], full=False, gang=True)
