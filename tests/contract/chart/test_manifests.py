"""What the chart renders, for every switch, with each helm."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.contract.chart.helm import (
    NAMESPACE,
    REGISTRY,
    Helm,
    Manifest,
    Values,
    identities,
    one,
    pods,
)
from tests.contract.chart.readme import CHART

DIGEST = "sha256:" + "0" * 64
CASES: dict[str, Values] = {
    "default": {},
    "everything": {
        "image.pullSecrets": ["one", "two"],
        "image.slim.digest": DIGEST,
        "controller.podLabels": {"team": "x"},
        "controller.podAnnotations": {"note": "x"},
        "controller.nodeSelector": {"disk": "fast"},
        "controller.tolerations": [{"key": "x", "operator": "Exists"}],
        "controller.priorityClassName": "high",
        "store.affinity": {"nodeAffinity": {}},
        "store.podLabels": {"team": "x"},
        "store.podAnnotations": {"note": "x"},
        "store.resources": {"limits": {"memory": "1Gi"}},
        "store.persistence.storageClass": "fast",
        "serviceAccount.annotations": {"cloud/role": "x"},
        "monitoring.podMonitor.enabled": True,
        "monitoring.podMonitor.labels": {"release": "prometheus"},
        "monitoring.serviceMonitor.enabled": True,
        "monitoring.serviceMonitor.labels": {"release": "prometheus"},
        "monitoring.dashboard.enabled": True,
        "monitoring.dashboard.annotations": {"folder": "FlexMARL"},
        "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "m"}}}],
    },
    "namespaces": {"watch.namespaces": ["blue", "green"], "monitoring.podMonitor.enabled": True},
    "little": {
        "store.bundled": False,
        "store.secretName": "mine",
        "crds.enabled": False,
        "rbac.create": False,
        "rbac.aggregate": False,
        "serviceAccount.create": False,
        "serviceAccount.name": "mine",
        "networkPolicy.enabled": False,
    },
    "memory": {"store.persistence.enabled": False, "crds.keep": False},
}
OLDEST = "1.29"
FOREIGN = {"PodMonitor", "ServiceMonitor"}
OWN = {"MARLJob"}
DEFINITION = "CustomResourceDefinition"


@pytest.mark.parametrize("case", CASES)
def test_it_passes_lint(each_helm: Helm, case: str) -> None:
    done = each_helm.lint(CASES[case])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_what_kubernetes_knows(each_helm: Helm, case: str) -> None:
    manifests = each_helm.render(CASES[case])
    for manifest in manifests:
        if manifest["kind"] not in FOREIGN | OWN:
            kubernetes_validate.validate(manifest, OLDEST, strict=True)
            kubernetes_validate.validate(
                manifest, kubernetes_validate.latest_version(), strict=True
            )
    assert len(identities(manifests)) == len(set(identities(manifests)))


@pytest.mark.parametrize("case", ["default", "namespaces", "little"])
def test_switched_off_it_needs_no_foreign_definition(helm: Helm, case: str) -> None:
    quiet = {path: value for path, value in CASES[case].items() if "onitor" not in path}
    groups = {m["apiVersion"].rpartition("/")[0] for m in helm.render(quiet)}
    known = ("", "apps", "networking.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io")
    assert groups <= {*known, "flexmarl.io"}


def test_what_a_plain_install_makes(helm: Helm) -> None:
    """Beside what `helm test` makes and removes."""
    own = [each for each in identities(helm.render()) if not each[2].endswith("-test")]
    assert own == [
        ("ClusterRole", "", f"{NAMESPACE}:demo-flexmarl"),
        ("ClusterRole", "", f"{NAMESPACE}:demo-flexmarl-edit"),
        ("ClusterRole", "", f"{NAMESPACE}:demo-flexmarl-nodes"),
        ("ClusterRole", "", f"{NAMESPACE}:demo-flexmarl-view"),
        ("ClusterRoleBinding", "", f"{NAMESPACE}:demo-flexmarl"),
        ("ClusterRoleBinding", "", f"{NAMESPACE}:demo-flexmarl-nodes"),
        ("CustomResourceDefinition", "", "marljobs.flexmarl.io"),
        ("Deployment", NAMESPACE, "demo-flexmarl"),
        ("NetworkPolicy", NAMESPACE, "demo-flexmarl"),
        ("NetworkPolicy", NAMESPACE, "demo-flexmarl-store"),
        ("PersistentVolumeClaim", NAMESPACE, "demo-flexmarl-store"),
        ("Role", NAMESPACE, "demo-flexmarl-installation"),
        ("RoleBinding", NAMESPACE, "demo-flexmarl-installation"),
        ("Secret", NAMESPACE, "demo-flexmarl-store"),
        ("Service", NAMESPACE, "demo-flexmarl-store"),
        ("ServiceAccount", NAMESPACE, "demo-flexmarl"),
        ("StatefulSet", NAMESPACE, "demo-flexmarl-store"),
    ]


def test_an_older_kubernetes_is_refused(each_helm: Helm) -> None:
    flags = [f"--set-json={path}={json.dumps(value)}" for path, value in REGISTRY.items()]
    older = each_helm.run("template", "demo", str(CHART), *flags, "--kube-version=1.28.9")
    assert older.returncode != 0
    assert ">=1.29" in older.stderr
    assert each_helm.render({}, "--kube-version=v1.29.3-eks-1")


def test_both_helms_render_the_same() -> None:
    from tests.contract.chart.conftest import PROGRAMS, program

    def rendered(name: str) -> list[Manifest]:
        return program(name).render({**CASES["everything"], "store.secretName": "mine"})

    first, second = map(rendered, PROGRAMS)
    assert sorted(map(str, first)) == sorted(map(str, second))


@pytest.mark.parametrize("case", CASES)
def test_pods_meet_the_restricted_standard(helm: Helm, case: str) -> None:
    found = pods(helm.render(CASES[case]))
    assert found
    for name, spec in found.items():
        own = spec["securityContext"]
        assert own["runAsNonRoot"] is True, name
        assert own["runAsUser"] > 0, name
        assert own["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["limits"]["memory"], name
        for volume in spec.get("volumes", []):
            assert set(volume) & {"emptyDir", "persistentVolumeClaim"}, name


def test_only_who_asks_the_api_server_has_a_token(helm: Helm) -> None:
    tokens = {
        name: spec["automountServiceAccountToken"] for name, spec in pods(helm.render()).items()
    }
    assert tokens == {
        "Deployment/demo-flexmarl": True,
        "Pod/demo-flexmarl-test": True,
        "StatefulSet/demo-flexmarl-store": False,
    }


def test_no_service_of_the_namespace_gets_into_our_settings(helm: Helm) -> None:
    """A Service flexmarl-store would give every pod beside it FLEXMARL_STORE_PORT."""
    assert {spec["enableServiceLinks"] for spec in pods(helm.render()).values()} == {False}


def test_no_container_is_process_1(helm: Helm) -> None:
    """The kernel keeps from it every signal that it has no handler for: deletion would wait."""
    assert {spec["shareProcessNamespace"] for spec in pods(helm.render()).values()} == {True}


def test_every_pod_may_pull(helm: Helm) -> None:
    for spec in pods(helm.render(CASES["everything"])).values():
        assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_a_digest_takes_the_place_of_the_tag(helm: Helm) -> None:
    images = {
        container["image"]
        for spec in pods(helm.render({"image.slim.digest": DIGEST, "image.tag": "x"})).values()
        for container in spec["containers"]
    }
    assert images == {f"registry.example/team/flexmarl/slim@{DIGEST}"}


def test_images_have_the_version_of_the_chart(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    store = pods(helm.render())["StatefulSet/demo-flexmarl-store"]
    assert store["containers"][0]["image"] == f"registry.example/team/flexmarl/slim:{version}"


def test_the_definition_is_the_generated_one(each_helm: Helm) -> None:
    [given] = [m for m in each_helm.render() if m["kind"] == DEFINITION]
    generated = yaml.safe_load((CHART / "files/marljobs.yaml").read_text())
    assert given["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert given["metadata"]["name"] == generated["metadata"]["name"]
    assert {k: v for k, v in given.items() if k != "metadata"} == {
        k: v for k, v in generated.items() if k != "metadata"
    }


def test_the_definition_can_be_left_to_others_or_let_go(helm: Helm) -> None:
    assert not [m for m in helm.render({"crds.enabled": False}) if m["kind"] == DEFINITION]
    [given] = [m for m in helm.render({"crds.keep": False}) if m["kind"] == DEFINITION]
    assert "helm.sh/resource-policy" not in given["metadata"].get("annotations", {})


def test_a_changed_version_does_not_restart_the_store(helm: Helm) -> None:
    """Labels of its pods are those of no version, so only its image and settings restart it."""
    store = one(helm.render(), "StatefulSet", "demo-flexmarl-store")
    labels = store["spec"]["template"]["metadata"]["labels"]
    assert labels == store["spec"]["selector"]["matchLabels"]


def test_the_stores_memory_fits_its_pod(helm: Helm) -> None:
    values = {"store.maxMemoryMib": 4096, "store.persistence.size": "20Gi"}
    spec = pods(helm.render(values))["StatefulSet/demo-flexmarl-store"]
    [container] = spec["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["FLEXMARL_STORE_MAX_MEMORY_MIB"] == "4096"
    assert container["resources"]["limits"]["memory"] == "8320Mi"


def test_the_stores_url_reaches_its_service_with_a_long_password(helm: Helm) -> None:
    manifests = helm.render()
    secret = one(manifests, "Secret", "demo-flexmarl-store")
    url = base64.b64decode(secret["data"]["url"]).decode()
    user, _, rest = url.removeprefix("redis://").partition(":")
    password, _, address = rest.partition("@")
    assert user == "flexmarl"
    assert len(password) == 32
    assert address == f"demo-flexmarl-store.{NAMESPACE}.svc:6379/0"
    assert one(manifests, "Service", "demo-flexmarl-store")["spec"]["ports"][0]["port"] == 6379


def test_someone_elses_store_leaves_nothing_of_ours(helm: Helm) -> None:
    manifests = helm.render({"store.bundled": False, "store.secretName": "mine"})
    assert not [name for name in identities(manifests) if name[2].endswith("-store")]
    [container] = pods(manifests)["Deployment/demo-flexmarl"]["containers"]
    [url] = [entry for entry in container["env"] if entry["name"] == "FLEXMARL_STORE_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "url"}


@pytest.mark.parametrize(
    ("enabled", "volume"),
    [
        (True, {"persistentVolumeClaim": {"claimName": "demo-flexmarl-store"}}),
        (False, {"emptyDir": {}}),
    ],
)
def test_the_store_keeps_its_log_where_asked(helm: Helm, enabled: bool, volume: Any) -> None:
    manifests = helm.render({"store.persistence.enabled": enabled})
    [found] = pods(manifests)["StatefulSet/demo-flexmarl-store"]["volumes"]
    assert found == {"name": "data", **volume}
    claims = [m for m in manifests if m["kind"] == "PersistentVolumeClaim"]
    assert len(claims) == enabled


def test_who_may_reach_the_store(helm: Helm) -> None:
    policy = one(helm.render(), "NetworkPolicy", "demo-flexmarl-store")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "redis"}]
    assert [peer["podSelector"]["matchLabels"] for peer in rule["from"]] == [
        {
            "app.kubernetes.io/name": "flexmarl",
            "app.kubernetes.io/instance": "demo",
            "app.kubernetes.io/component": "controller",
        },
        {"flexmarl.io/role": "experience"},
    ]


def test_serving_less_cuts_no_running_job_off_the_store(helm: Helm) -> None:
    policy = ("NetworkPolicy", "demo-flexmarl-store")
    more, less = (helm.render({"watch.namespaces": ns}) for ns in ([], ["blue"]))
    assert one(more, *policy)["spec"] == one(less, *policy)["spec"]


def test_nobody_reads_the_controllers_metrics_unless_named(helm: Helm) -> None:
    name = ("NetworkPolicy", "demo-flexmarl")
    assert "ingress" not in one(helm.render(), *name)["spec"]
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    [rule] = one(helm.render({"networkPolicy.metricsFrom": [peer]}), *name)["spec"]["ingress"]
    assert rule == {"from": [peer], "ports": [{"protocol": "TCP", "port": "metrics"}]}


def test_long_release_names_fit(helm: Helm) -> None:
    done = helm.run("template", "r" * 53, str(CHART), "--set", "image.registry=x.example")
    assert done.returncode == 0, done.stderr
    for manifest in filter(None, yaml.safe_load_all(done.stdout)):
        limit = 40 if manifest["kind"] == "MARLJob" else 63
        assert len(manifest["metadata"]["name"]) <= limit or "Role" in manifest["kind"]


def test_the_job_of_helm_test_is_valid(helm: Helm, tmp_path: Any) -> None:
    from flexmarl.contracts.reading import load_job

    [job] = [m for m in helm.render() if m["kind"] == "MARLJob"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert load_job(file).spec.steps == 2


def test_the_job_of_helm_test_leaves_nothing(helm: Helm) -> None:
    [job] = [m for m in helm.render() if m["kind"] == "MARLJob"]
    assert job["spec"]["checkpoint"] == {"claim": {"retain": False, "size": "1Gi"}}
    assert job["spec"]["ttlSecondsAfterFinished"]
    assert "hook-succeeded" in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]


@pytest.mark.parametrize(
    ("values", "storage_class"),
    [
        ({"store.persistence.storageClass": "fast"}, "fast"),
        ({"store.persistence.storageClass": "fast", "test.storageClass": "slow"}, "slow"),
    ],
)
def test_the_claim_of_helm_test_is_of_the_class_that_was_named(
    helm: Helm, values: Values, storage_class: str
) -> None:
    [job] = [m for m in helm.render(values) if m["kind"] == "MARLJob"]
    assert job["spec"]["checkpoint"]["claim"]["storageClass"] == storage_class


def test_helm_test_tells_how_the_job_stands_before_helm_gives_up(helm: Helm) -> None:
    manifests = helm.render()
    [container] = pods(manifests)["Pod/demo-flexmarl-test"]["containers"]
    [job] = [m for m in manifests if m["kind"] == "MARLJob"]
    readme = (CHART / "README.md").read_text()
    [helms] = re.findall(r"helm test .*--timeout (\d+)s", readme)
    assert int(container["args"][-1]) == job["spec"]["activeDeadlineSeconds"] == int(helms) - 60


@pytest.mark.parametrize("size", ["3Gi", "3072Mi", "4G", "4000000000", "0.003Ti"])
def test_a_claim_that_holds_the_stores_log_is_made(helm: Helm, size: str) -> None:
    assert helm.render({"store.persistence.size": size})


@pytest.mark.parametrize(
    "values",
    [
        {"store.persistence.size": "3071Mi"},
        {"store.persistence.size": "3G"},
        {"store.persistence.size": "10"},
        {"store.maxMemoryMib": 8192},
    ],
)
def test_a_claim_too_small_for_the_stores_log_is_refused(helm: Helm, values: Values) -> None:
    assert "ask for at least" in helm.refusal({**REGISTRY, **values})


def test_the_controller_is_not_killed_for_being_slow(helm: Helm) -> None:
    """Jobs train on while it is behind; killed, it would have to read everything anew."""
    [container] = pods(helm.render())["Deployment/demo-flexmarl"]["containers"]
    for name, least in (("startupProbe", 300), ("livenessProbe", 300), ("readinessProbe", 60)):
        probe = container[name]
        assert probe["timeoutSeconds"] >= 10, name
        assert probe["periodSeconds"] * probe["failureThreshold"] >= least, name


def test_a_namespace_that_is_not_watched_has_no_test(helm: Helm) -> None:
    [job] = [m for m in helm.render({"watch.namespaces": ["blue"]}) if m["kind"] == "MARLJob"]
    assert job["metadata"]["namespace"] == "blue"
    [job] = [m for m in helm.render({"watch.namespaces": ["a", NAMESPACE]}) if m["kind"] in OWN]
    assert job["metadata"]["namespace"] == NAMESPACE
