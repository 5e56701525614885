"""Manifests: what always holds of them, and a few to look at."""

import copy
import importlib
import json
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.controller.seen import INSTALLATION, document, subject

from flexmarl.contracts import rules
from flexmarl.contracts.quantities import quantity
from flexmarl.controller import scale
from flexmarl.controller.names import LONGEST, MADE_AS, Manifest, child
from flexmarl.controller.render import WORKLOADS, access, render
from flexmarl.controller.render.merge import laid_over
from flexmarl.controller.scale import Engines

NAMES = st.from_regex(r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$", fullmatch=True)
POOLS: dict[str, Any] = {
    "pools": [
        {"name": "fast", "role": "engine", "gpus": 1, "min": 1, "max": 4,
         "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"name": "slots", "role": "trainer", "gpus": 2, "min": 1, "max": 2},
    ],
}  # fmt: skip


def pooled() -> dict[str, Any]:
    plain = document(policies=3, **copy.deepcopy(POOLS))
    for policy in plain["spec"]["policies"]:
        policy["pools"] = ["fast", "slots"]
    assert not rules.check(plain)
    return plain


def rendered(plain: dict[str, Any] | None = None, **wanted: int) -> list[Manifest]:
    return render(subject(plain), INSTALLATION, {k.replace("_", "-"): v for k, v in wanted.items()})


def named(manifests: list[Manifest], name: str) -> Manifest:
    """The last one: workloads come after the Services of their name."""
    return next(one for one in reversed(manifests) if one["metadata"]["name"] == name)


@pytest.mark.parametrize("plain", [document(), pooled()], ids=["plain", "pools"])
def test_every_manifest_is_one_that_kubernetes_knows(plain: dict[str, Any]) -> None:
    for manifest in rendered(plain):
        kubernetes_validate.validate(manifest, "1.29", strict=True)


@settings(max_examples=50)
@given(NAMES, st.lists(NAMES, min_size=1, max_size=3, unique=True))
def test_names_fit_whatever_the_job_is_called(job: str, policies: list[str]) -> None:
    plain = document(job, len(policies))
    for policy, agent, name in zip(
        plain["spec"]["policies"], plain["spec"]["agents"], policies, strict=True
    ):
        policy["name"] = agent["policy"] = name
    manifests = rendered(plain)
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    for _, name in names:
        assert len(name) <= LONGEST
        assert name[0].isalpha()
        assert name[-1].isalnum()


@given(NAMES, st.lists(st.text("abc-", min_size=1, max_size=60), min_size=1, max_size=3))
def test_a_shortened_name_is_another_for_another_child(job: str, parts: list[str]) -> None:
    assert child(job, *parts, "a") != child(job, *parts, "b")


@given(st.dictionaries(st.sampled_from(["fast", "slots", "gone"]), st.integers(0, 9)))
def test_scaling_changes_nothing_but_replicas(wanted: dict[str, int]) -> None:
    before, after = (render(subject(pooled()), INSTALLATION, want) for want in ({}, wanted))
    for one, other in zip(before, after, strict=True):
        for manifest in (one, other):
            if manifest["kind"] == "StatefulSet":
                del manifest["spec"]["replicas"]
        assert one == other


def test_whatever_else_changes_of_a_workload_can_be_told_without_comparing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told() -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["metadata"]["annotations"][MADE_AS]
            for one in rendered(pooled())
            if one["kind"] in WORKLOADS
        }

    before = told()
    with monkeypatch.context() as other:
        other.setattr("flexmarl.controller.render.pods.GRACE_SECONDS", 77)
        assert not before.items() & told().items()
    with monkeypatch.context() as other:
        module = importlib.import_module("flexmarl.controller.render.orchestrator")
        other.setattr(module, "PASSING", 99)
        assert {name for name, one in told().items() if before[name] != one} == {
            "team-orchestrator"
        }
    assert told() == before


@given(st.none() | st.integers(0, 99), st.integers(1, 6), st.integers(0, 4))
def test_a_pool_is_as_large_as_wanted_within_its_bounds(
    wanted: int | None, least: int, more: int
) -> None:
    plain = pooled()
    plain["spec"]["pools"][0] |= {"min": least, "max": least + more}
    spec = subject(plain).job.spec
    counts = scale.engines(spec, {} if wanted is None else {"fast": wanted})
    assert counts.keys() == {Engines(pool="fast")}
    (count,) = counts.values()
    assert least <= count <= least + more
    assert count == wanted or count in (least, least + more)


def test_policies_of_a_pool_share_its_pods_and_others_have_their_own() -> None:
    plain = pooled()
    plain["spec"]["policies"][2]["pools"] = ["slots"]
    manifests = rendered(plain, fast=3)
    sets = {
        one["metadata"]["name"]: one["spec"]["replicas"]
        for one in manifests
        if one["kind"] == "StatefulSet"
    }
    assert sets == {"team-engine-fast": 3, "team-engine-policy-2": 1, "team-trainer-slots": 2}
    settings = {
        name: {
            one["name"]: one.get("value")
            for one in named(manifests, name)["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        for name in ("team-engine-fast", "team-engine-policy-2", "team-orchestrator")
    }
    assert settings["team-engine-fast"]["FLEXMARL_POOL"] == "fast"
    assert "FLEXMARL_POLICY" not in settings["team-engine-fast"]
    assert settings["team-engine-policy-2"]["FLEXMARL_POLICY"] == "policy-2"
    assert json.loads(settings["team-orchestrator"]["FLEXMARL_DISCOVERY"] or "") == {
        "workers": "team-worker.research.svc:7070",
        "engines": {"policy-2": "team-engines-policy-2.research.svc:7070"},
        "pools": {"fast": "team-engines-fast.research.svc:7070"},
    }


def test_a_claim_that_is_kept_has_no_owner() -> None:
    kept = named(rendered(), "team-run")
    assert "ownerReferences" not in kept["metadata"]
    reader = json.loads(kept["metadata"]["annotations"]["flexmarl.io/reader"])
    assert reader["image"] == "registry.example/slim:1"
    gone = named(rendered(document(checkpoint={"claim": {"retain": False}})), "team-run")
    assert gone["metadata"]["ownerReferences"]
    others = [one for one in rendered() if one["kind"] != "PersistentVolumeClaim"]
    assert all(one["metadata"]["ownerReferences"] for one in others)


def test_trainers_ask_for_their_shared_memory() -> None:
    plain = document(shm={"size": "120Gi"})
    pod = named(rendered(plain), "team-trainer")["spec"]["template"]["spec"]
    (shm,) = [one for one in pod["volumes"] if one["name"] == "shm"]
    assert shm["emptyDir"]["sizeLimit"] == "120Gi"
    asked = pod["containers"][0]["resources"]["requests"]["memory"]
    assert quantity(asked) == quantity("120Gi") + quantity("512Mi")


def test_who_mounts_a_claim_that_serves_one_node_goes_where_the_others_are() -> None:
    def near(**claim: str) -> set[str]:
        return {
            one["metadata"]["name"]
            for one in rendered(document(checkpoint={"claim": claim}))
            if one["kind"] in WORKLOADS and "affinity" in one["spec"]["template"]["spec"]
        }

    assert near() == near(size="1Gi") == {"team-orchestrator", "team-trainer"}
    assert near(accessMode="ReadWriteMany") == near(name="mine") == set()


@pytest.mark.parametrize(
    ("wanted", "there", "lacks"),
    [
        ({}, {}, ""),
        ({}, {"accessModes": ["ReadWriteMany"]}, ""),
        ({"accessMode": "ReadWriteMany"}, {}, "is ReadWriteOnce, not ReadWriteMany"),
        ({}, {"accessModes": ["ReadOnlyMany"]}, "is ReadOnlyMany, not ReadWriteOnce"),
        ({"storageClass": "fast"}, {"storageClassName": "slow"}, 'of the StorageClass "slow"'),
        ({}, {"storageClassName": "slow"}, ""),
        ({"size": "100Gi"}, {}, "asks for 20Gi, not for 100Gi"),
        ({"size": "1Gi"}, {}, ""),
        ({}, {"resources": {"requests": {"storage": "1Gi"}}}, ""),
    ],
)
def test_a_claim_that_is_there_serves_if_it_is_what_was_asked_for(
    wanted: dict[str, str], there: dict[str, Any], lacks: str
) -> None:
    made = named(rendered(document(checkpoint={"claim": wanted})), "team-run")
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
        **there,
    }
    said = access.claim_lacks(made, {**made, "spec": spec})
    assert lacks in said
    assert bool(said) == bool(lacks)


def test_pods_fit_the_restricted_profile() -> None:
    for manifest in rendered(pooled()):
        if manifest["kind"] in WORKLOADS:
            spec = manifest["spec"]["template"]["spec"]
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in (*spec["containers"], *spec.get("initContainers", ())):
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_sandbox_is_process_1_and_reaps_what_user_code_leaves_behind() -> None:
    specs = [m["spec"]["template"]["spec"] for m in rendered(pooled()) if m["kind"] in WORKLOADS]
    assert {spec["shareProcessNamespace"] for spec in specs} == {True}


def test_a_template_is_laid_over_ours_and_cannot_hide_a_pod() -> None:
    template = {
        "metadata": {"labels": {"flexmarl.io/job": "other", "team": "blue"}},
        "spec": {
            "containers": [
                {"name": "main", "env": [{"name": "HF_TOKEN", "value": "x"}]},
                {"name": "extra", "image": "y"},
            ],
            "priorityClassName": "high",
        },
    }
    made = named(rendered(document(roles={"worker": {"template": template}})), "team-worker")
    pod = made["spec"]["template"]
    assert pod["metadata"]["labels"]["flexmarl.io/job"] == "team"
    assert pod["metadata"]["labels"]["team"] == "blue"
    assert [one["name"] for one in pod["spec"]["containers"]] == ["main", "extra"]
    main = pod["spec"]["containers"][0]
    assert main["env"][-1] == {"name": "HF_TOKEN", "value": "x"}
    assert main["image"] == "registry.example/slim:1"
    assert pod["spec"]["priorityClassName"] == "high"


@given(st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=3), inner, max_size=3)))  # fmt: skip
def test_nothing_laid_over_changes_nothing(tree: Any) -> None:
    assert laid_over({"a": tree}, {}) == {"a": tree}


@pytest.mark.parametrize("kind", ["native", "coscheduling", "volcano"])
def test_a_gang_counts_every_pod_that_starts(kind: str) -> None:
    manifests = rendered(document(gang={"kind": kind}))
    (group,) = [one for one in manifests if one["kind"] == "PodGroup"]
    spec = group["spec"]
    count = spec.get("minMember") or spec["schedulingPolicy"]["gang"]["minCount"]
    started = [one["spec"].get("replicas", 1) for one in manifests if one["kind"] in WORKLOADS]
    assert count == sum(started)


def test_trainers_and_engines_with_gpus_are_on_their_nodes_network_if_asked() -> None:
    plain = pooled()
    plain["spec"]["network"] = {"hostNetwork": True, "rdmaResource": "rdma/hca"}
    plain["spec"]["checkpoint"] = {"claim": {"accessMode": "ReadWriteMany"}}
    manifests = rendered(plain)
    swift = set()
    for manifest in manifests:
        if manifest["kind"] in WORKLOADS:
            kubernetes_validate.validate(manifest, "1.29", strict=True)
            spec = manifest["spec"]["template"]["spec"]
            limits = spec["containers"][0]["resources"].get("limits", {})
            assert bool(spec.get("hostNetwork")) == ("rdma/hca" in limits)
            if spec.get("hostNetwork"):
                assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
                assert any(key.endswith("/gpu") for key in limits)
                swift.add(manifest["metadata"]["labels"]["flexmarl.io/role"])
    assert swift == {"engine", "trainer"}
    policies = [one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"]
    (opened,) = [one for one in policies if any("from" not in rule for rule in one["ingress"])]
    assert opened["podSelector"]["matchLabels"]["flexmarl.io/role"] == "experience"
    del plain["spec"]["pools"], plain["spec"]["checkpoint"]
    for policy in plain["spec"]["policies"]:
        del policy["pools"]
    on_nodes = [
        one["metadata"]["labels"]["flexmarl.io/role"]
        for one in rendered(plain)
        if one["kind"] in WORKLOADS and one["spec"]["template"]["spec"].get("hostNetwork")
    ]
    assert on_nodes == ["trainer"]


def test_each_role_has_its_own_time_to_answer_for_the_first_time() -> None:
    plain = pooled()
    roles = ("orchestrator", "worker", "engine", "trainer", "experience")
    plain["spec"]["roles"] = {
        role: {"startupSeconds": number + 10} for number, role in enumerate(roles)
    }
    found = {}
    for one in rendered(plain):
        if one["kind"] in WORKLOADS:
            main = one["spec"]["template"]["spec"]["containers"][0]
            probe = main["startupProbe"]
            role = one["metadata"]["labels"]["flexmarl.io/role"].removeprefix("rollout-")
            found[role] = probe["failureThreshold"] * probe["periodSeconds"]
    assert found == {role: number + 10 for number, role in enumerate(roles)}


def test_a_trainer_begins_beside_its_sidecar() -> None:
    """With a startup probe main would wait for it: torch takes long enough to be imported."""
    pod = named(rendered(), "team-trainer")["spec"]["template"]["spec"]
    sidecar = pod["initContainers"][-1]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("weights", "Always")
    assert "startupProbe" not in sidecar
    assert sidecar["livenessProbe"]["grpc"] == {"port": 7071}


def test_pods_of_pools(snapshot: SnapshotAssertion) -> None:
    manifests = rendered(pooled(), fast=2)
    assert named(manifests, "team-engine-fast") == snapshot
    assert named(manifests, "team-trainer-slots") == snapshot


def test_the_orchestrators_job(snapshot: SnapshotAssertion) -> None:
    assert named(rendered(), "team-orchestrator") == snapshot


def test_who_may_call(snapshot: SnapshotAssertion) -> None:
    assert [one for one in rendered() if one["kind"] == "NetworkPolicy"] == snapshot
