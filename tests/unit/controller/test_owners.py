"""Whose an object is."""

from __future__ import annotations

from typing import Any

from flexmarl.controller.cache import Objects
from flexmarl.controller.findings import name_taken
from flexmarl.controller.names import Manifest, owner
from flexmarl.controller.owners import own


def child(kind: str, name: str, uid: str = "", **metadata: Any) -> Manifest:
    """Labelled as the job's; `uid`: of the job whose it is."""
    references = [owner("team", uid)] if uid else []
    about = {"name": name, "labels": {"flexmarl.io/job": "team"}, "ownerReferences": references}
    return {"kind": kind, "metadata": {**about, **metadata}}


def pod(name: str, uid: str) -> Manifest:
    made = child("Pod", name)
    made["metadata"]["labels"]["flexmarl.io/uid"] = uid
    return made


def test_only_what_is_the_jobs_own_counts_whatever_name_and_labels_say() -> None:
    children = [
        child("StatefulSet", "team-trainer", "now"),
        child("Job", "team-orchestrator", "before"),
        child("Deployment", "debug"),
        pod("team-trainer-0", "now"),
        pod("team-orchestrator-x", "before"),
        child("Pod", "shell"),
    ]
    job = {"kind": "MARLJob", "metadata": {"name": "team", "uid": "now"}}
    there = Objects(job, {(one["kind"], one["metadata"]["name"]): one for one in children})
    assert set(own(there).children) == {("StatefulSet", "team-trainer"), ("Pod", "team-trainer-0")}


def test_who_has_a_name_is_told_with_what_to_do() -> None:
    earlier = name_taken("Secret team-job", child("Secret", "team-job", "before"), "team")
    assert "it waits until that is gone" in earlier.message
    going = child("Secret", "team-job", deletionTimestamp="2026-01-01T00:00:00Z")
    assert "it waits until that is gone" in name_taken("Secret team-job", going, "team").message
    other = name_taken("Secret team-job", child("Secret", "team-job", "other"), "team-job")
    assert "belongs to MARLJob team; delete that, or give this job another name" in other.message
    nobody = name_taken("Secret team-job", child("Secret", "team-job"), "team")
    assert "delete it, or give the job another name" in nobody.message
    assert {one.reason for one in (earlier, other, nobody)} == {"NameTaken"}
    assert not any(one.fatal for one in (earlier, other, nobody))
