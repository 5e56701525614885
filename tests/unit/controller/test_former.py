"""What another controller has made of a job that still runs."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.controller.seen import document, subject

from flexmarl.contracts.cel import FIXED
from flexmarl.controller.former import carried_on, is_other
from flexmarl.controller.names import MADE_AS, Manifest
from flexmarl.controller.render.access import job_file

POOLS = [{"name": "fast", "role": "engine", "min": 1, "max": 1}]


def file_of(plain: dict[str, Any], maker: str) -> Manifest:
    found = job_file(subject(plain))
    found["metadata"]["annotations"] = {MADE_AS: maker}
    return found


def spec_of(manifest: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(manifest["data"]["job.yaml"])["spec"]
    return spec


def pooled(**spec: Any) -> dict[str, Any]:
    plain = document(**{"pools": POOLS, **spec})
    for policy in plain["spec"]["policies"]:
        policy["pools"] = ["fast"]
    return plain


def test_of_a_running_jobs_file_only_what_may_change_does() -> None:
    before = file_of(pooled(seed=3, activeDeadlineSeconds=9, suspendTimeout=300), "older")
    changed = pooled(seed=4, steps=8, balancing={"delta": 2}, suspendTimeout=9)
    changed["spec"]["pools"] = [{**POOLS[0], "max": 4}]
    now = file_of(changed, "younger")
    spec = json.loads(now["data"]["job.yaml"])
    spec["spec"] |= {"novelty": 1}  # of the younger definition
    spec["spec"]["pools"][0]["novelty"] = 1
    now["data"]["job.yaml"] = json.dumps(spec)
    found = carried_on(now, before)
    assert not is_other(found, before)
    assert is_other(found, now)
    same = {key: value for key, value in spec_of(before).items() if key in FIXED}
    assert spec_of(found) == same | {
        "steps": 8,
        "balancing": {"delta": 2},
        "suspendTimeout": 9,
        "pools": [{**POOLS[0], "max": 4}],
    }
    assert carried_on(now, found) == found


def test_a_file_that_somebody_has_spoiled_is_written_anew() -> None:
    now = file_of(pooled(), "younger")
    for data in ({}, {"job.yaml": "other"}, {"job.yaml": "[]"}, {"job.yaml": "{}"}):
        assert carried_on(now, {**file_of(pooled(), "older"), "data": data}) == now


def test_a_file_is_another_by_what_cannot_change_and_by_what_it_has() -> None:
    now = job_file(subject(pooled(steps=2)))
    changed = pooled(steps=8, balancing={"delta": 2}, activeDeadlineSeconds=9)
    changed["spec"]["pools"] = [{**POOLS[0], "max": 4}]
    assert not is_other(now, job_file(subject(changed)))
    plain = subject(pooled(steps=2))
    for place in (plain.document["spec"], plain.document["spec"]["pools"][0]):
        place["novelty"] = 1  # of a younger definition
        assert is_other(now, job_file(plain))
        del place["novelty"]
    assert is_other(now, job_file(subject(pooled(steps=2, seed=4))))
    assert is_other({**now, "metadata": {}}, now)
