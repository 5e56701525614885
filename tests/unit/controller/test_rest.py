"""A job about which nothing is new costs next to nothing: hundreds of them are looked at."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.contract.controller.bad_jobs import sound

from flexmarl.contracts.preparation import PACKED
from flexmarl.controller.cache import Objects
from flexmarl.controller.known import Known
from flexmarl.controller.names import ROLE_LABEL, UID_LABEL
from flexmarl.controller.reading import Read, read
from flexmarl.controller.seeing import leader


def test_a_job_is_read_again_when_anything_pods_read_of_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[int] = []

    def counted(manifest: dict[str, Any]) -> Read:
        times.append(1)
        return read(manifest)

    monkeypatch.setattr("flexmarl.controller.known.read", counted)
    known, manifest = Known("1"), sound()
    for _ in range(3):
        job, problems, *_ = known.read(copy.deepcopy(manifest))
        assert job is not None
        assert not problems
        manifest["status"] = {"step": len(times)}
    assert len(times) == 1
    manifest["spec"]["steps"] = 7
    job = known.read(manifest).job
    assert job is not None
    assert job.spec.steps == 7
    manifest["metadata"]["annotations"] = {PACKED: "job-files"}
    known.read(manifest)
    assert len(times) == 3
    broken = copy.deepcopy(manifest)
    broken["spec"]["agents"][0]["policy"] = "nobody"
    assert known.read(broken).problems


def pod(role: str, ip: str, ready: str = "True", uid: str = "1", **metadata: str) -> dict[str, Any]:
    status = {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]}
    labels = {ROLE_LABEL: role, UID_LABEL: uid}
    return {"kind": "Pod", "metadata": {"labels": labels, **metadata}, "status": status}


def test_the_orchestrator_is_asked_where_its_last_ready_pod_is() -> None:
    pods = [
        pod("engine", "10.0.0.1"),
        pod("orchestrator", "10.0.0.2", ready="False"),
        pod("orchestrator", "10.0.0.3", deletionTimestamp="now"),
        pod("orchestrator", "10.0.0.5", uid="of an earlier job"),
        {"kind": "Pod", "metadata": {}},
    ]
    there = Objects({}, {("Pod", str(n)): one for n, one in enumerate(pods)})
    assert leader(there, "1") is None
    there.children["Pod", "x"] = pod("orchestrator", "10.0.0.4")
    assert leader(there, "1") == "10.0.0.4"
