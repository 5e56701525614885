"""Pools of engines: who may share them."""

from __future__ import annotations

from typing import Any

from flexmarl.contracts.cluster import PoolRole
from flexmarl.contracts.cluster_rules import only_on_clusters
from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.rules import check

MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}


def job(
    policies: dict[str, dict[str, Any]], pools: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "metadata": {"name": "pooled"},
        "spec": {
            "policies": [
                {"name": name, "model": MODEL, "engine": {"kind": "scripted"}, **own}
                for name, own in policies.items()
            ],
            "agents": [{"name": f"agent-{name}", "policy": name} for name in policies],
            "workflow": {"name": "debate"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 1,
            "pools": pools or [{"name": "shared", "role": "engine"}],
        },
    }


def problems(document: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check(document) if not problem.warning]


def test_more_policies_than_engines_may_share_a_pool() -> None:
    document = job({name: {"pools": ["shared"]} for name in "abcd"})
    assert problems(document) == []
    spec = MARLJob.model_validate(document).spec
    assert spec.engine_pools == {"shared": ["a", "b", "c", "d"]}
    assert spec.pool_of("a", PoolRole.TRAINER) is None


def test_policies_that_share_engines_have_one_kind() -> None:
    (said,) = problems(
        job(
            {
                "a": {"pools": ["shared"]},
                "b": {"pools": ["shared"], "engine": {"kind": "transformers"}},
            }
        )
    )
    assert "kind scripted" in said
    assert "have one engine kind" in said


def test_an_api_shares_no_engines() -> None:
    api = {"kind": "openai", "openai": {"baseUrl": "http://api", "model": "m"}}
    document = job({"a": {"pools": ["shared"]}, "b": {"pools": ["shared"], "engine": api}})
    document["spec"]["policies"][1] |= {"training": {"algorithm": "none"}}
    del document["spec"]["policies"][1]["model"]
    assert any("an API serves the policy" in said for said in problems(document))


def test_a_pool_is_not_called_like_a_policy_with_engines_of_its_own() -> None:
    pool = [{"name": "b", "role": "engine"}]
    (said,) = problems(job({"a": {"pools": ["b"]}, "b": {}}, pool))
    assert "choose another name" in said
    assert problems(job({"a": {"pools": ["b"]}, "b": {"pools": ["b"]}}, pool)) == []


def test_pools_mean_something_on_one_machine_but_for_their_pods() -> None:
    pool = {"name": "shared", "role": "engine", "min": 2, "max": 4, "gpus": 1}
    document = job({"a": {"pools": ["shared"]}}, [pool])
    assert only_on_clusters(document) == ["spec.pools[0].gpus", "spec.pools[0].max"]
