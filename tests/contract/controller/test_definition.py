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
