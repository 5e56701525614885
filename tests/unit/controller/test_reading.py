"""Jobs that a later release has defined, or a later definition filled in."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.controller.seen import document, seen

from flexmarl.contracts.crd import crd
from flexmarl.controller import seeing
from flexmarl.controller.cache import Objects
from flexmarl.controller.findings import find
from flexmarl.controller.observed import JobState
from flexmarl.controller.phase import Phase, next_phase
from flexmarl.controller.plan import Wish, plan
from flexmarl.controller.reading import read
from flexmarl.controller.status import next_status

PLACES = (
    "", "policies.0", "policies.0.model", "policies.0.engine", "policies.0.training", "agents.1",
    "agents.1.sampling", "workflow", "code", "code.git", "data", "reward", "eval", "eval.data",
    "batch", "pipeline", "pools.0", "pools.0.tolerations.0", "balancing", "weightSync", "store",
    "checkpoint", "checkpoint.claim", "cache", "shm", "network", "gang", "roles", "roles.worker",
    "roles.worker.restartPolicy",
)  # fmt: skip
"""Objects of a spec that have fields of ours."""


def whole() -> dict[str, Any]:
    """A job in which all of them are there, none of them twice."""
    names = "batch pipeline balancing weightSync store cache shm network gang"
    empty: dict[str, Any] = {each: {} for each in names.split()}
    plain = document(
        code={"git": {"url": "https://host/team.git"}},
        workflow={"entrypoint": "team:Team"},
        reward={"name": "exact"},
        eval={"data": {"uri": "gym://chain_sum"}},
        pools=[{"name": "fast", "role": "engine", "tolerations": [{"operator": "Exists"}]}],
        roles={"worker": {"restartPolicy": {"max": 2}}},
        checkpoint={"claim": {"size": "1Gi"}},
        **empty,
    )
    plain["spec"]["policies"][0] |= {"training": {}, "pools": ["fast"]}
    plain["spec"]["agents"][1]["sampling"] = {"maxTokens": 12}
    copied: dict[str, Any] = json.loads(json.dumps(plain))
    return copied


def at(plain: dict[str, Any], place: str) -> dict[str, Any]:
    found: Any = plain["spec"]
    for part in filter(None, place.split(".")):
        found = found[int(part)] if isinstance(found, list) else found[part]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [0, {"a": [1]}], ids=["plain", "object"])
def test_a_field_that_is_not_known_here_stands_in_no_job_s_way(place: str, value: Any) -> None:
    plain = whole()
    known = read(copy.deepcopy(plain))
    assert (known.problems, known.unknown) == ((), ())
    at(plain, place)["novelty"] = value
    found = read(plain)
    assert (found.job, found.problems) == (known.job, ())
    assert [one.replace("[", ".").replace("]", "") for one in found.unknown] == [
        ".".join(filter(None, ("spec", place, "novelty")))
    ]


def test_however_many_there_are() -> None:
    plain = whole()
    for place in PLACES:
        at(plain, place)["novelty"] = {}
    found = read(plain)
    assert (found.job, found.problems) == (read(whole()).job, ())
    assert len(found.unknown) == len(PLACES)


def test_beside_one_that_is_not_known_here_what_is_wrong_is_told() -> None:
    plain = document(novelty=1)
    plain["spec"]["steps"] = "many"
    plain["spec"]["agents"][0]["policy"] = "nobody"
    found = read(plain)
    assert found.job is None
    told = {one.partition(":")[0] for one in found.problems}
    assert told >= {"spec.steps", "spec.agents[0].policy"}
    assert "spec.novelty" not in told


def test_what_was_left_out_is_told() -> None:
    what = seen(unknown=("spec.novelty",))
    assert not find(what)
    status = next_status({}, what, [], Phase.STARTING, None)
    (accepted,) = [one for one in status["conditions"] if one["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
    assert "spec.novelty" in accepted["message"]


WORDS = {
    "policies.0.engine.kind", "policies.0.training.algorithm", "policies.0.training.correction",
    "policies.0.training.deadGroups", "policies.0.model.dtype", "data.format", "gang.kind",
    "pools.0.role", "pools.0.tolerations.0.operator", "pools.0.tolerations.0.effect",
    "weightSync.transport", "checkpoint.claim.accessMode", "pipeline.filter.name",
}  # fmt: skip
"""Fields of a spec whose values are enumerated."""


def test_these_are_all_of_them() -> None:
    """Of the schema that the API server has."""
    (version,) = crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    elsewhere = {"eval.data.format", "policies.0.training.warmStart.data.format"}
    assert set(enumerated(spec, ())) == WORDS | elsewhere


def enumerated(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if "enum" in schema:
        yield ".".join(path)
    for name, below in schema.get("properties", {}).items():
        yield from enumerated(below, (*path, name))
    if "items" in schema:
        yield from enumerated(schema["items"], (*path, "0"))


@pytest.mark.parametrize("field", sorted(WORDS))
def test_a_value_of_a_later_release_fails_no_job_and_is_told(field: str) -> None:
    plain = whole()
    plain["spec"]["pipeline"] = {"filter": {}}
    assert read(copy.deepcopy(plain)).later == ()
    place, _, name = field.rpartition(".")
    at(plain, place)[name] = "novel"
    found = read(plain)
    assert found.problems == ()
    (words,) = found.later
    told, _, value = words.partition(": ")
    assert told.replace("[", ".").replace("]", "") == f"spec.{field}"
    assert value == '"novel"'
    assert found.job is not None or field == "pools.0.role"
    for ran in (False, True):
        what = seen(later=found.later, ran=ran, orchestrator=JobState.ACTIVE)
        (one,) = find(what)
        assert (one.reason, one.fatal) == ("ControllerTooOld", False)
        assert f"spec.{words.removeprefix('spec.')}" in one.message
        assert "upgrade FlexMARL" in one.message
        assert next_phase(Phase.RUNNING, what, [one]) is Phase.RUNNING
        spec = found.job.spec if found.job else None
        status = next_status({"phase": "Running"}, what, [one], Phase.RUNNING, spec)
        assert plan(status, what, Phase.RUNNING).wish is Wish.AS_IT_IS
        (accepted,) = [one for one in status["conditions"] if one["type"] == "Accepted"]
        assert (accepted["status"], accepted["reason"]) == ("False", "ControllerTooOld")
        assert accepted["message"] == status["message"] == one.message


def test_a_value_of_another_kind_is_a_problem() -> None:
    plain = document(gang={"kind": 3})
    found = read(plain)
    assert found.later == ()
    assert "spec.gang.kind" in found.problems[0]


def test_a_job_that_is_not_understood_may_be_restarted_as_often_as_it_says() -> None:
    plain = whole()
    plain["metadata"]["uid"] = "1"
    plain["spec"]["pools"][0]["role"] = "novel"
    said = read(plain)
    assert said.job is None
    what = seeing.observe(Objects(plain, {}), said, now=1.0, progress=None, findings=())
    assert what.limits == {"rollout-worker": 2}
