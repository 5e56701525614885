"""The definition of MARLJob before a real API server: what it refuses, in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contract.controller.bad_jobs import BAD, changed, sound

from .kube import Kubernetes
from .stage import Stage

pytestmark = pytest.mark.light


def create(cluster: Kubernetes, namespace: str, *jobs: dict[str, Any]) -> str:
    """What the API server says of them; nothing is kept."""
    arguments = ("-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f", "-")
    items = [{**job, "metadata": {**job["metadata"], "namespace": namespace}} for job in jobs]
    # One after the other: of a List kubectl itself looks at unknown fields, in words of its own.
    documents = "---\n".join(f"{json.dumps(item)}\n" for item in items)
    return cluster.kubectl(*arguments, stdin=documents, check=False)


def test_bad_jobs_are_refused_with_the_words_of_validate(stage: Stage) -> None:
    cluster, namespace = stage.cluster, stage.namespace()
    assert "created" in create(cluster, namespace, sound())
    said = create(cluster, namespace, *BAD.values())
    assert [words for words in BAD if words not in said] == []
    assert "created" not in said


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("stpes", 3, 'unknown field "spec.stpes"'),
        ("steps", "three", 'spec.steps: Invalid value: "string"'),
        ("activeDeadlineSeconds", 0, "greater than or equal to 1"),
        ("gang__kind", "mafia", 'Unsupported value: "mafia"'),
    ],
)
def test_what_no_job_has_is_refused(stage: Stage, path: str, value: Any, words: str) -> None:
    said = create(stage.cluster, stage.namespace(), changed(**{path: value}))
    assert words in said
    assert "created" not in said


def test_only_what_may_change_can_be_changed(stage: Stage) -> None:
    cluster, namespace = stage.cluster, stage.namespace()
    job = sound()
    job["metadata"]["namespace"] = namespace
    job["spec"]["managedBy"] = "example.com/nobody"  # no controller takes it up
    pool = {"name": "fast", "role": "engine", "gpus": 1, "nodeSelector": {"gpu": "x"}, "max": 2}
    job["spec"]["pools"] = [pool]
    for policy in job["spec"]["policies"]:
        policy["pools"] = ["fast"]
    cluster.apply(namespace, job)

    def patch(spec: dict[str, Any]) -> str:
        arguments = ("patch", "marljob", "tiny", "--type=merge", "-p", json.dumps({"spec": spec}))
        return cluster.kubectl("-n", namespace, *arguments, check=False)

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
