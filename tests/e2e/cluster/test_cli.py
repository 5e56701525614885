"""The command line against a cluster that knows MARLJobs; its jobs are suspended: no pods start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .chart import Release
from .kube import Kubernetes, until

JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {name: duel}
spec:
  suspend: true
  policies:
    - name: solver
      model: {uri: "random://llama?hidden=16&layers=1&heads=2&context=512"}
      engine: {kind: scripted}
  agents: [{name: solver, policy: solver}]
  workflow: {name: single}
  data: {uri: file://data/tasks.jsonl}
  reward: {name: exact-match}
  steps: 2
"""
TASK = {"question": "1 + 1", "answer": "2"}

pytestmark = pytest.mark.usefixtures("release")


def flexmarl(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "flexmarl.cli", *arguments],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tasks.jsonl").write_text(f"{json.dumps(TASK)}\n" * 20)
    return tmp_path


def test_a_job_and_the_files_beside_it_are_applied_and_go_together(
    cluster: Kubernetes, release: Release, namespace: str, folder: Path
) -> None:
    code, said = flexmarl(folder, "apply", "job.yaml", "-n", namespace)
    assert code == 0, said
    assert f"marljob duel in namespace {namespace}: created" in said
    assert "unchanged" in flexmarl(folder, "apply", "job.yaml", "-n", namespace)[1]
    job = cluster.get(namespace, "marljob", "duel")
    files = job["spec"]["code"]["configMap"]
    assert set(cluster.get(namespace, "configmap", files)["binaryData"]) == {"files.tar.gz"}
    cluster.kubectl("-n", namespace, "delete", "marljob", "duel")
    until(
        lambda: files not in cluster.kubectl("-n", namespace, "get", "configmap", "-o", "name"),
        "its files are gone",
    )


def test_a_job_is_followed_suspended_and_resumed_by_its_name(
    cluster: Kubernetes, release: Release, namespace: str, folder: Path
) -> None:
    where = ("-n", namespace)
    assert flexmarl(folder, "apply", "job.yaml", *where)[0] == 0
    code, said = flexmarl(folder, "status", "duel", *where, "--json")
    assert code == 0, said
    assert json.loads(said)["name"] == "duel"
    code, said = flexmarl(folder, "logs", "duel", *where)
    assert "has no pods" in said
    assert "in the claim duel-run" in said
    code, said = flexmarl(folder, "suspend", "duel", *where)
    assert (code, "is suspended already" in said) == (1, True)
    assert flexmarl(folder, "resume", "duel", *where)[0] == 0
    assert not cluster.get(namespace, "marljob", "duel")["spec"].get("suspend")


def test_what_a_cluster_refuses_is_told_in_words(
    cluster: Kubernetes, release: Release, namespace: str, folder: Path
) -> None:
    code, said = flexmarl(folder, "status", "nobody", "-n", namespace)
    assert (code, 'no MARLJob "nobody"' in said) == (1, True)
    assert flexmarl(folder, "apply", "job.yaml", "-n", namespace)[0] == 0
    change = ("apply", "job.yaml", "-n", namespace, "--set", "spec.seed=7")
    code, said = flexmarl(folder, *change)
    assert code == 2
    assert "spec.seed" in said
    assert "cannot be changed" in said
    code, said = flexmarl(folder, "apply", "job.yaml", "-n", f"{namespace}-none")
    assert (code, "kubectl create namespace" in said) == (2, True)
