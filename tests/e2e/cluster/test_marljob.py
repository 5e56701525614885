"""The definition of MARLJob before a real API server: what it refuses, in which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller.bad_jobs import BAD, sound

from .kube import Kubernetes

DEFINITION = "charts/flexmarl/files/marljobs.yaml"


@pytest.fixture(scope="module")
def defined(cluster: Kubernetes, repo: Path) -> Iterator[Kubernetes]:
    """With the definition of this working tree; one that was not there before goes again."""
    path = str(repo / DEFINITION)
    created = "created" in cluster.kubectl("create", "-f", path, check=False)
    cluster.kubectl("wait", "--for=condition=Established", "crd/marljobs.flexmarl.io")
    yield cluster
    if created:
        cluster.kubectl("delete", "-f", path)


def create(cluster: Kubernetes, namespace: str, job: dict[str, Any]) -> str:
    """What the API server says of it; nothing is kept."""
    job = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
    arguments = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    return cluster.kubectl(*arguments, stdin=json.dumps(job), check=False)


def test_a_sound_job_is_taken(defined: Kubernetes, namespace: str) -> None:
    assert "created" in create(defined, namespace, sound())


def test_bad_jobs_are_refused_with_the_words_of_validate(
    defined: Kubernetes, namespace: str
) -> None:
    said = {words: create(defined, namespace, job) for words, job in BAD.items()}
    assert {words: text for words, text in said.items() if words not in text} == {}


def test_unknown_fields_are_refused(defined: Kubernetes, namespace: str) -> None:
    job = sound()
    job["spec"]["stpes"] = 3
    assert 'unknown field "spec.stpes"' in create(defined, namespace, job)


def test_only_what_may_change_can_be_changed(defined: Kubernetes, namespace: str) -> None:
    job = sound()
    job["metadata"]["namespace"] = namespace
    job["spec"]["managedBy"] = "example.com/nobody"  # no controller takes it up
    pool = {"name": "fast", "role": "engine", "gpus": 1, "nodeSelector": {"gpu": "x"}, "max": 2}
    job["spec"]["pools"] = [pool]
    for policy in job["spec"]["policies"]:
        policy["pools"] = ["fast"]
    defined.apply(namespace, job)

    def patch(spec: dict[str, Any]) -> str:
        arguments = ("patch", "marljob", "tiny", "--type=merge", "-p", json.dumps({"spec": spec}))
        return defined.kubectl("-n", namespace, *arguments, check=False)

    assert "patched" in patch({"steps": 5, "suspend": True, "activeDeadlineSeconds": 60})
    assert "patched" in patch({"pools": [{**pool, "min": 2, "max": 4}]})
    pool_changes: list[dict[str, Any]] = [
        {"gpus": 2},
        {"nodeSelector": {"gpu": "y"}},
        {"role": "trainer"},
    ]
    for change in pool_changes:
        assert "only min and max" in patch({"pools": [{**pool, **change}]})
    assert "can only be raised" in patch({"steps": 4})
    fixed: list[dict[str, Any]] = [
        {"seed": 7},
        {"batch": {"groupSize": 4}},
        {"reward": {"name": "exact"}},
    ]
    for change in fixed:
        assert "cannot be changed" in patch(change)
