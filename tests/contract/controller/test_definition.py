"""The definition of MARLJob before a real API server: what may not change, names, its status."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.contract.controller.bad_jobs import BAD, sound
from tests.contract.controller.conftest import World

from flexmarl.contracts.cel import POOLS_CHANGED
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import Manifest

POOL: dict[str, Any] = {
    "name": "fast",
    "role": "engine",
    "gpus": 1,
    "nodeSelector": {"gpu": "x"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "max": 2,
    "template": {"spec": {"priorityClassName": "high", "containers": [{"name": "main"}]}},
}
BROKEN: list[dict[str, Any]] = [
    {"gpus": 2},
    {"nodeSelector": {"gpu": "y"}},
    {"role": "trainer"},
    {"tolerations": []},
    {"tolerations": [{"key": "other", "operator": "Exists"}]},
    {"template": {"spec": {"priorityClassName": "low", "containers": [{"name": "main"}]}}},
    {"template": {"spec": {"priorityClassName": "high"}}},
]


def pooled() -> Manifest:
    made = sound()
    made["spec"]["pools"] = [copy.deepcopy(POOL)]
    for policy in made["spec"]["policies"]:
        policy["pools"] = ["fast"]
    return made


async def refusal(world: World, job: Manifest, pools: Any) -> str:
    """What the API server says of it; empty: it takes it."""
    try:
        await world.change(f"{world.path}/{job['metadata']['name']}", {"spec": {"pools": pools}})
    except RefusedError as error:
        return str(error)
    return ""


async def test_of_pools_only_their_number_of_engines_changes(world: World) -> None:
    job = pooled()
    await world.submit(job)
    assert await refusal(world, job, [{**POOL, "min": 2, "max": 4}]) == ""
    for change in BROKEN:
        assert POOLS_CHANGED in await refusal(world, job, [{**POOL, **change}]), change
    for key in ("tolerations", "template", "nodeSelector"):
        less = {name: value for name, value in POOL.items() if name != key}
        assert POOLS_CHANGED in await refusal(world, job, [less]), key
    assert POOLS_CHANGED in await refusal(world, job, None)


async def test_a_job_without_pools_gets_none(world: World) -> None:
    job = sound()
    await world.submit(job)
    assert POOLS_CHANGED in await refusal(world, job, [{"name": "late", "role": "engine"}])


async def test_bad_jobs_are_refused_with_the_words_of_validate(world: World) -> None:
    for words, bad in BAD.items():
        with pytest.raises(RefusedError) as refused:
            await world.submit(copy.deepcopy(bad))
        assert words in str(refused.value)


@pytest.mark.parametrize("place", ["metadata", "policies", "agents"])
async def test_a_name_that_is_none_is_refused_in_words(world: World, place: str) -> None:
    job = sound()
    if place == "metadata":
        job["metadata"]["name"] = "my.job"
    else:
        job["spec"][place][0]["name"] = "my.one"
    with pytest.raises(RefusedError) as refused:
        await world.submit(job)
    assert 'must be lower-case letters, digits and inner "-", as in solver-1' in str(refused.value)


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""What kubectl asks for to show a list."""


async def test_who_lists_jobs_sees_how_they_are(world: World) -> None:
    key = await world.submit(sound())
    job = await world.cluster.call("GET", f"{world.path}/{key.name}")
    status = {
        "phase": "Running",
        "reason": "Evaluating",
        "progress": "1/2",
        "reward": "0.5",
        "tokensPerSecond": "70",
        "restartsTotal": 3,
    }
    await world.cluster.write_status(job, status)
    table = await world.cluster.call("GET", world.path, accept=TABLE)
    (row,) = table["rows"]
    cells = list(zip(table["columnDefinitions"], row["cells"], strict=True))
    shown = {column["name"]: cell for column, cell in cells if column["priority"] == 0}
    wide = {column["name"]: cell for column, cell in cells if column["priority"] > 0}
    assert shown.pop("Age")
    assert shown == {"Name": "tiny", "Phase": "Running", "Reason": "Evaluating", "Step": "1/2"}
    assert wide == {"Reward": "0.5", "Tokens/s": "70", "Restarts": 3}


async def test_it_is_found_by_its_short_names(world: World) -> None:
    found = await world.cluster.call("GET", "/apis/flexmarl.io/v1alpha1")
    (jobs,) = [one for one in found["resources"] if one["name"] == "marljobs"]
    assert (jobs["singularName"], jobs["shortNames"]) == ("marljob", ["mj"])
    assert jobs["categories"] == ["all"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"steps": "three"}, 'spec.steps: Invalid value: "string"'),
        ({"steps": 1.5}, "spec.steps"),
        ({"steps": 0}, "should be greater than or equal to 1"),
        ({"policies": {}}, "spec.policies"),
        ({"agents": []}, "should have at least 1 items"),
        ({"suspend": "yes"}, "spec.suspend"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"suspendTimeout": 90000}, "should be less than or equal to 86400"),
        ({"gang": {"kind": "slurm"}}, 'Unsupported value: "slurm"'),
        ({"pools": [{"name": "x", "role": "mixed"}]}, 'supported values: "engine", "trainer"'),
        ({"weightSync": {"transport": "rdma"}}, 'Unsupported value: "rdma"'),
    ],
    ids=str,
)
async def test_values_of_a_wrong_kind_are_refused_with_their_field(
    world: World, spec: dict[str, Any], words: str
) -> None:
    job = sound()
    job["spec"] |= spec
    with pytest.raises(RefusedError) as refused:
        await world.submit(job)
    assert refused.value.status == 422
    assert words in str(refused.value)


async def test_a_job_that_is_over_does_not_begin_again(world: World) -> None:
    key = await world.submit(sound())
    at = f"{world.path}/{key.name}"
    for phase in ("Running", "Complete", "Failed"):
        job = await world.cluster.call("GET", at)
        await world.cluster.write_status(job, {"phase": phase})
        for change in (
            {"steps": job["spec"]["steps"] + 1},
            {"suspend": not job["spec"]["suspend"]},
        ):
            if phase == "Running":
                await world.change(at, {"spec": change})
                continue
            with pytest.raises(RefusedError) as refused:
                await world.change(at, {"spec": change})
            assert "the job is over" in str(refused.value)
        await world.change(at, {"spec": {"ttlSecondsAfterFinished": 60}})
        await world.change(at, {"metadata": {"labels": {"phase": phase}}})


async def test_a_status_is_explained_and_loses_nothing(world: World) -> None:
    key = await world.submit(sound())
    job = await world.cluster.call("GET", f"{world.path}/{key.name}")
    for status in (
        {
            "phase": "Running",
            "restarts": {"trainer": 1},
            "restartsSeen": {"u": 1},
            "later": {"a": 1},
        },
        {
            "phase": "Running",
            "policies": [{"name": "solver", "engines": 1}],
            "message": "m" * 70000,
        },
        {"phase": "Failed", "restarts": {}, "failure": {"role": "trainer", "message": ""}},
    ):
        job = await world.cluster.write_status(job, status)
        kept = {name: value for name, value in job["status"].items() if value is not None}
        assert kept == status
