"""The command line against a cluster that knows MARLJobs. Only the last of these jobs runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors import safe_open

from .chart import Release
from .jobs import Job
from .kube import Kubernetes, until
from .specs import slow
from .user import flexmarl

STEPS = 10
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


def test_what_a_run_left_is_read_while_it_goes_on_without_its_pods_and_without_the_job(
    cluster: Kubernetes,
    images: Mapping[str, str],
    release: Release,
    namespace: str,
    folder: Path,
) -> None:
    where = ("-n", namespace)
    job = Job(cluster, images, namespace)
    job.submit(slow(STEPS, speed=2))  # it goes on while a command looks
    job.trains(1)
    code, said = flexmarl(folder, "report", "team", *where)
    assert code == 0, said
    run = folder / "runs" / f"team-{job.uid[:8]}"
    assert said.strip() == str(run.relative_to(folder) / "report.html")
    assert "Running" in (run / "report.html").read_text()
    job.reaches("Complete")
    job.without_pods()
    code, said = flexmarl(folder, "open", "team", *where)
    assert (code, said.strip()) == (0, (run / "report.html").as_uri())
    assert "Complete" in (run / "report.html").read_text()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == STEPS
    assert "Complete" in flexmarl(folder, "status", "team", *where)[1]
    code, said = flexmarl(folder, "logs", "team", "--role", "trainer", *where)
    assert "has no pods of trainer" in said
    assert "team-trainer-0 | " in said
    assert "team-orchestrator" not in said
    assert flexmarl(folder, "export", "team", "judge", "model", *where)[0] == 1
    job.delete()
    until(lambda: not job.children(), "the job's children are gone", 60)
    code, said = flexmarl(folder, "export", "team", "solver", "model", *where)
    assert code == 0, said
    assert f"model: solver after {STEPS} steps" in said
    with safe_open(folder / "model" / "model.safetensors", "np") as tensors:
        assert tensors.keys()
    assert not (folder / "model" / "optimizer.safetensors").exists()
    assert cluster.kubectl("-n", namespace, "get", "pods", "-o", "name") == ""
