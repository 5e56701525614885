"""The command line against a cluster that knows MARLJobs. Only the last two of these jobs run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors import safe_open

from .kube import until
from .specs import slow
from .stage import Stage
from .user import SECONDS, flexmarl, running

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


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory)
        (found / "job.yaml").write_text(JOB)
        (found / "data").mkdir()
        (found / "data" / "tasks.jsonl").write_text(f"{json.dumps(TASK)}\n" * 20)
        yield found


@pytest.mark.light
def test_a_job_and_the_files_beside_it_are_applied_and_go_together(stage: Stage) -> None:
    cluster, namespace = stage.cluster, stage.namespace()
    with folder() as here:
        code, said = flexmarl(here, "apply", "job.yaml", "-n", namespace)
        assert code == 0, said
        assert f"marljob duel in namespace {namespace}: created" in said
        assert "unchanged" in flexmarl(here, "apply", "job.yaml", "-n", namespace)[1]
    job = cluster.get(namespace, "marljob", "duel")
    files = job["spec"]["code"]["configMap"]
    assert set(cluster.get(namespace, "configmap", files)["binaryData"]) == {"files.tar.gz"}
    cluster.kubectl("-n", namespace, "delete", "marljob", "duel")
    until(lambda: not cluster.reader.one("configmap", namespace, files), "its files are gone")


@pytest.mark.light
def test_a_job_is_followed_suspended_and_resumed_by_its_name(stage: Stage) -> None:
    namespace = stage.namespace()
    where = ("-n", namespace)
    with folder() as here:
        assert flexmarl(here, "apply", "job.yaml", *where)[0] == 0
        code, said = flexmarl(here, "status", "duel", *where, "--json")
        assert code == 0, said
        assert json.loads(said)["name"] == "duel"
        code, said = flexmarl(here, "logs", "duel", *where)
        assert "has no pods" in said
        assert "in the claim duel-run" in said
        code, said = flexmarl(here, "suspend", "duel", *where)
        assert (code, "is suspended already" in said) == (1, True)
        assert flexmarl(here, "resume", "duel", *where)[0] == 0
    assert not stage.cluster.get(namespace, "marljob", "duel")["spec"].get("suspend")


@pytest.mark.light
def test_what_a_cluster_refuses_is_told_in_words(stage: Stage) -> None:
    namespace = stage.namespace()
    with folder() as here:
        code, said = flexmarl(here, "status", "nobody", "-n", namespace)
        assert (code, 'no MARLJob "nobody"' in said) == (1, True)
        assert flexmarl(here, "apply", "job.yaml", "-n", namespace)[0] == 0
        change = ("apply", "job.yaml", "-n", namespace, "--set", "spec.seed=7")
        code, said = flexmarl(here, *change)
        assert code == 2
        assert "spec.seed" in said
        assert "cannot be changed" in said
        code, said = flexmarl(here, "apply", "job.yaml", "-n", f"{namespace}-none")
        assert (code, "kubectl create namespace" in said) == (2, True)


@pytest.mark.long
def test_what_a_run_left_is_read_while_it_goes_on_without_its_pods_and_without_the_job(
    stage: Stage,
) -> None:
    job = stage.job()
    where = ("-n", job.namespace)
    job.submit(slow(STEPS, speed=2))  # it goes on while a command looks
    job.trains(1)
    with folder() as here:
        code, said = flexmarl(here, "report", "team", *where)
        assert code == 0, said
        run = here / "runs" / f"team-{job.uid[:8]}"
        assert said.strip() == str(run.relative_to(here) / "report.html")
        assert "Running" in (run / "report.html").read_text()
        job.reaches("Complete")
        job.without_pods()
        code, said = flexmarl(here, "open", "team", *where)
        assert (code, said.strip()) == (0, (run / "report.html").as_uri())
        assert "Complete" in (run / "report.html").read_text()
        assert len((run / "metrics.jsonl").read_text().splitlines()) == STEPS
        assert "Complete" in flexmarl(here, "status", "team", *where)[1]
        code, said = flexmarl(here, "logs", "team", "--role", "trainer", *where)
        assert "has no pods of trainer" in said
        assert "team-trainer-0 | " in said
        assert "team-orchestrator" not in said
        assert flexmarl(here, "export", "team", "judge", "model", *where)[0] == 1
        job.delete()
        until(lambda: not job.children(), "the job's children are gone", 60)
        code, said = flexmarl(here, "export", "team", "solver", "model", *where)
        assert code == 0, said
        assert f"model: solver after {STEPS} steps" in said
        with safe_open(here / "model" / "model.safetensors", "np") as tensors:
            assert tensors.keys()
        assert not (here / "model" / "optimizer.safetensors").exists()
    assert stage.cluster.reader.all("pod", job.namespace) == []


def test_logs_are_followed_over_a_restart_and_the_loss_of_a_pod_to_the_jobs_end(
    stage: Stage,
) -> None:
    job, role = stage.job(), "rollout-worker"
    job.submit(slow(speed=4))
    job.trains(1)
    with running("logs", job.name, "-f", "--role", role, "-n", job.namespace) as (command, file):
        until(lambda: "serving" in file.read_text(), "it has read the first life", 60)
        job.kill(role)
        job.trains(3)
        job.lose(role)
        job.reaches("Complete")
        code, said = command.wait(SECONDS), file.read_text()
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.startswith(f"{job.name}-worker-")]
    pods = [line.partition(" | ")[0] for line in lines if '"serving"' in line]
    assert len(pods) == 3, said
    assert pods[0] == pods[1] != pods[2]
    assert len({*lines}) == len(lines), "a line was shown twice"
    assert f"marljob {job.name} is Complete" in said.splitlines()[-1]
