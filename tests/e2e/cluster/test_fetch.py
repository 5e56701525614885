"""Models, data and code reach the pods; what cannot is told in words.

A user brings everything: a model of a private hub, tasks and code in folders beside the job file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from . import hub
from .jobs import Job, once
from .specs import USER, agent, idle, policy
from .stage import Stage

STEPS, TASKS = 2, 3
WORKFLOW = """
from flexmarl.rollout.api import Rewards, Task, Team, Workflow
from shared.words import asked


class Alone(Workflow):
    gives_rewards = False

    async def run(self, task: Task, team: Team) -> Rewards:
        await team[self.agents[0]].chat(asked(task.record))
        return None
"""
WORDS = """
def asked(record: dict[str, str]) -> str:
    return f"Say letters: {record['question']}"
"""

pytestmark = pytest.mark.beside


def model(revision: str = "v1") -> dict[str, Any]:
    return {"uri": f"hf://org/model@{revision}", "secretRef": {"name": "hub-keys"}}


def write(folder: Path, job: Job) -> None:
    """The job file, and beside it tasks and code."""
    spec = {
        "policies": [policy("solver", model=model())],
        "agents": [agent("solver")],
        "workflow": {"entrypoint": "own.play:Alone"},
        "reward": {"entrypoint": "team:early_letters"},
        "code": {"path": "code"},
        "data": {"uri": "file://data/tasks.jsonl"},
        "steps": STEPS,
        "batch": {"tasksPerStep": TASKS, "groupSize": 2},
        "checkpoint": {"claim": {"size": "1Gi"}},
    }
    document = {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    files = {
        "job.yaml": json.dumps(document),
        "data/tasks.jsonl": "".join(f'{{"question": "q{number}"}}\n' for number in range(12)),
        "code/own/play.py": WORKFLOW,
        "code/shared/words.py": WORDS,
        "code/team.py": (USER / "team.py").read_text(),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def applied(job: Job) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), job)
        done = subprocess.run(
            [sys.executable, "-m", "flexmarl.cli", "apply", "job.yaml", "-n", job.namespace],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    job.uid = job.manifest()["metadata"]["uid"]


def fetched(job: Job) -> tuple[str, str, str]:
    """The condition ModelsFetched: status, reason, message."""
    conditions = job.status().get("conditions", ())
    found = {one["type"]: one for one in conditions}.get("ModelsFetched", {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def test_a_users_model_tasks_and_code_are_trained_with(stage: Stage) -> None:
    job = stage.job("own")
    url = hub.start(job)
    applied(job)
    job.until(lambda: fetched(job)[1] == "SecretMissing", "the missing Secret is told")
    assert 'secret "hub-keys" not found; create the Secret' in fetched(job)[2]
    hub.keys(job, "hub-keys", url)
    job.until(lambda: fetched(job)[:2] == ("True", "Fetched"), "everything is fetched")
    job.completes()
    once(job, STEPS, TASKS)
    assert fetched(job)[:2] == ("True", "Fetched")
    stage.done_with(job.namespace)


def test_a_revision_that_is_not_there_ends_the_job(stage: Stage) -> None:
    job = stage.job("gone")
    hub.keys(job, "hub-keys", hub.start(job))
    submit(job, model("v2"))
    status = job.reaches("Failed")
    assert status["reason"] == "SourceNotFound"
    assert "has no org/model at revision v2; correct the URI" in status["message"]
    assert fetched(job)[:2] == ("False", "SourceNotFound")
    job.without_pods()
    stage.done_with(job.namespace)


def test_a_token_that_is_refused_ends_the_job(stage: Stage) -> None:
    job = stage.job("denied")
    hub.keys(job, "hub-keys", hub.start(job), token="another")
    submit(job, model())
    status = job.reaches("Failed")
    assert status["reason"] == "AccessDenied"
    assert "the hub does not let this token read org/model" in status["message"]
    stage.done_with(job.namespace)


def test_a_hub_that_is_away_is_waited_for(stage: Stage) -> None:
    job = stage.job("away")
    url = hub.start(job)
    hub.keys(job, "hub-keys", url.rpartition(":")[0] + ":1")
    submit(job, model())
    job.until(lambda: fetched(job)[1] == "SourceUnreachable", "the hub that is away is told")
    status = job.status()
    assert (status["phase"], status["reason"]) == ("Starting", "SourceUnreachable")
    assert "check the network and the address" in status["message"]
    hub.keys(job, "hub-keys", url)
    job.until(lambda: fetched(job)[1] != "SourceUnreachable", "it is there")
    assert not job.status().get("restarts")
    job.delete()
    stage.done_with(job.namespace)


def submit(job: Job, source: dict[str, Any]) -> None:
    """A team of which only the engines start."""
    spec = idle(engine={})
    for one in spec["policies"]:
        one["model"] = source
    job.submit(spec)
