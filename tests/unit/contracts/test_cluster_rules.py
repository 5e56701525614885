"""Fields that only a cluster gives a meaning."""

import pytest
from tests.unit.contracts.jobs import good

from flexmarl.contracts.cluster_rules import (
    check_for_cluster,
    only_on_clusters,
    only_on_one_machine,
)
from flexmarl.contracts.rules import check

KEYS = {"name": "keys"}


def test_what_one_machine_makes_nothing_of_is_named_where_it_stands() -> None:
    document = good()
    spec = document["spec"]
    spec["cache"] = {"claim": "models"}
    spec["roles"] = {"engine": {"startupSeconds": 60, "replicas": 2}}
    spec["code"] = {"git": {"url": "https://host/team.git"}}
    spec["data"]["secretRef"] = KEYS
    spec["policies"][1]["model"] = {"uri": "hf://org/model", "secretRef": KEYS}
    spec["policies"][0]["training"]["warmStart"]["data"]["secretRef"] = KEYS
    assert only_on_clusters(document) == [
        "spec.cache",
        "spec.data.secretRef",
        "spec.code.git",
        "spec.roles.engine.startupSeconds",
        "spec.policies[0].training.warmStart.data.secretRef",
        "spec.policies[1].model.secretRef",
    ]


def test_what_a_cluster_makes_nothing_of_is_named_where_it_stands() -> None:
    document = good()
    spec = document["spec"]
    spec["store"] = {"maxMemoryMib": 64}
    spec["roles"] = {
        "weights": {"restartPolicy": {"max": 1}},
        "worker": {"restartPolicy": {"max": 1, "backoff": 2}},
    }
    assert only_on_one_machine(document) == [
        "spec.roles.weights",
        "spec.store.maxMemoryMib",
        "spec.roles.worker.restartPolicy.backoff",
    ]
    assert only_on_one_machine(good()) == only_on_clusters(good()) == []


def test_checkpoints_outlive_their_pods_or_the_job_is_refused() -> None:
    document = good()
    assert check_for_cluster(document) == []
    document["spec"]["checkpoint"] = {"uri": "file:///cache/checkpoints"}
    assert check(document) == check(good())
    assert [str(one) for one in check_for_cluster(document)] == [
        "spec.checkpoint.uri: checkpoints would be lost with their pod; on a cluster they lie in "
        "the claim of the run, checkpoint.claim; remove it"
    ]


@pytest.mark.parametrize("place", ["worker", "experience", "pool"])
def test_no_template_puts_pods_on_their_nodes_network(place: str) -> None:
    document = good()
    spec = document["spec"]
    template = {"spec": {"hostNetwork": True}}
    if place == "pool":
        spec["pools"] = [{"name": "fast", "role": "engine", "template": template}]
        for policy in spec["policies"]:
            policy["pools"] = ["fast"]
        at = "spec.pools[0].template"
    else:
        spec["roles"] = {place: {"template": template}}
        at = f"spec.roles.{place}.template"
    says = (
        f"{at}.spec.hostNetwork: a template cannot put pods on their nodes' network; remove it; "
        "spec.network.hostNetwork does so for trainers and engines with gpus"
    )
    assert says in [str(one) for one in check(document)]
    template["spec"]["hostNetwork"] = False
    assert says not in [str(one) for one in check(document)]


@pytest.mark.parametrize(
    ("uri", "tokenizer", "used"),
    [
        ("hf://org/model", None, True),
        ("s3://bucket/model", None, True),
        ("random://llama?hidden=8&layers=1&heads=2", "hf://org/tokenizer", True),
        ("random://llama?hidden=8&layers=1&heads=2", None, False),
        ("pvc://claim/model", None, False),
    ],
)
def test_a_secret_needs_something_to_fetch(uri: str, tokenizer: str | None, used: bool) -> None:
    document = good()
    policy = document["spec"]["policies"][1]
    policy["model"] = {"uri": uri, "secretRef": KEYS}
    if tokenizer is not None:
        policy["tokenizer"] = tokenizer
    says = "spec.policies[1].model.secretRef: would be ignored; only hf:// and s3:// are fetched"
    assert any(says in str(one) for one in check(document)) is not used
