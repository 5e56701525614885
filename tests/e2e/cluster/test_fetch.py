"""Models, data and code reach the pods; what cannot is told in words.

A user brings everything: a model of a private hub, tasks and code in folders beside the job file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from . import serving, sources, user
from .jobs import Job, once, same_as
from .specs import TASKS, idle, team
from .stage import Stage

STEPS = 2
FILL = """
import pathlib, sys
from flexmarl.fetch.fetching import copy_into, fetch
given = dict(word.split("=", 1) for word in sys.argv[2:])
copy_into(fetch(sys.argv[1], given=given), pathlib.Path("/run/models"))
"""
"""Puts a model into the claim that a pod has at /run."""


def model(revision: str = "v1") -> dict[str, Any]:
    return {"uri": f"hf://org/model@{revision}", "secretRef": {"name": "hub-keys"}}


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def fetched(job: Job) -> tuple[str, str, str]:
    """The condition ModelsFetched: status, reason, message."""
    conditions = job.status().get("conditions", ())
    found = {one["type"]: one for one in conditions}.get("ModelsFetched", {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def test_a_users_model_tasks_and_code_are_trained_with(stage: Stage) -> None:
    job = stage.job("own")
    url = sources.start(job)
    user.applied(job, STEPS, model())
    job.until(lambda: fetched(job)[1] == "SecretMissing", "the missing Secret is told")
    assert 'secret "hub-keys" not found; create the Secret' in fetched(job)[2]
    sources.keys(job, "hub-keys", url)
    job.until(lambda: fetched(job)[:2] == ("True", "Fetched"), "everything is fetched")
    job.completes()
    once(job, STEPS, user.TASKS)
    assert fetched(job)[:2] == ("True", "Fetched")


@pytest.mark.long
def test_buckets_claims_a_repository_and_a_cache_that_jobs_share(stage: Stage) -> None:
    job = stage.job("sources")
    address = sources.objects_and_code(job, tasks=12)
    given = sources.s3_keys(job, "s3-keys", address)
    job.cluster.apply(job.namespace, claim("cache"), claim("models"))
    words = [f"{name}={value}" for name, value in given.items()]
    fill = ["python3", "-c", FILL, "s3://team/models/two", *words]
    job.beside_claim("fills", "slim", command=fill, claim="models")
    spec = team(STEPS, cache={"claim": "cache"})
    secret = {"secretRef": {"name": "s3-keys"}}
    spec["policies"][0]["model"] = {"uri": "s3://team/models/one"} | secret
    spec["policies"][1]["model"] = {"uri": "pvc://models/models"}
    spec["data"] = {"uri": "s3://team/data/tasks.jsonl"} | secret
    spec["code"] = {"git": {"url": f"http://{address}:{serving.GIT_PORT}/team.git", "ref": "main"}}
    both = (job, replace(job, name="beside"))
    for each in both:
        each.submit(spec)
    for each in both:
        each.completes()
        once(each, STEPS, TASKS)
    same_as(*both)
    read = Counter(job.cluster.kubectl("-n", job.namespace, "logs", "sources").split())
    # Weights by a trainer, the tokenizer by an engine and a worker, each once for all pods of both.
    assert read["models/one/model.safetensors"] == 1
    assert read["models/one/tokenizer.json"] == 2
    assert read["data/tasks.jsonl"] == 1


def test_workers_are_of_the_image_that_the_users_code_is_in(stage: Stage) -> None:
    """Here the trainer's, which is made from ours as well; the code comes beside it."""
    job, spec = stage.job(), team(STEPS)
    spec["code"]["image"] = job.images["trainer"]
    job.submit(spec)
    job.trains(1)
    [worker] = job.pods("rollout-worker")
    assert worker["spec"]["containers"][0]["image"] == job.images["trainer"]
    job.completes()
    once(job, STEPS, TASKS)


@pytest.mark.light
def test_a_revision_that_is_not_there_ends_the_job(stage: Stage) -> None:
    job = stage.job("gone")
    sources.keys(job, "hub-keys", sources.start(job))
    submit(job, model("v2"))
    status = job.reaches("Failed")
    assert status["reason"] == "SourceNotFound"
    assert "has no org/model at revision v2; correct the URI" in status["message"]
    assert fetched(job)[:2] == ("False", "SourceNotFound")
    job.without_pods()


@pytest.mark.light
def test_a_token_that_is_refused_ends_the_job(stage: Stage) -> None:
    job = stage.job("denied")
    sources.keys(job, "hub-keys", sources.start(job), token="another")
    submit(job, model())
    status = job.reaches("Failed")
    assert status["reason"] == "AccessDenied"
    assert "the hub does not let this token read org/model" in status["message"]


@pytest.mark.light
def test_a_hub_that_is_away_is_waited_for(stage: Stage) -> None:
    job = stage.job("away")
    url = sources.start(job)
    sources.keys(job, "hub-keys", url.rpartition(":")[0] + ":1")
    submit(job, model())
    job.until(lambda: fetched(job)[1] == "SourceUnreachable", "the hub that is away is told")
    status = job.status()
    assert (status["phase"], status["reason"]) == ("Starting", "SourceUnreachable")
    assert "check the network and the address" in status["message"]
    sources.keys(job, "hub-keys", url)
    job.until(lambda: fetched(job)[1] != "SourceUnreachable", "it is there")
    assert not job.status().get("restarts")
    job.delete()


def submit(job: Job, source: dict[str, Any]) -> None:
    """A team of which only the engines start."""
    spec = idle(engine={})
    for one in spec["policies"]:
        one["model"] = source
    job.submit(spec)
