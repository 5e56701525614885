"""The chart installed into a real API server without a node: what it makes of what is there."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.layout import layout
from tests.contract.chart.helm import REGISTRY, Helm, Manifest, settings
from tests.contract.chart.readme import CHART

NAMESPACE = "flexmarl-system"
DEFAULT = "storageclass.kubernetes.io/is-default-class"


def storage_class(annotation: str = DEFAULT) -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "plain", "annotations": {annotation: "true"}},
        "provisioner": "example.com/none",
    }


@dataclass(frozen=True, slots=True)
class Installed:
    helm: Helm
    kubeconfig: Path

    def say(self, verb: str, *arguments: str, **values: Any) -> str:
        """What helm says of the release; `values` as paths, with _ for a dot."""
        chosen = {key.replace("_", "."): value for key, value in values.items()}
        where = ("-n", NAMESPACE, f"--kubeconfig={self.kubeconfig}")
        done = self.helm.run(*verb.split(), "demo", *arguments, *where, *settings(chosen))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def upgrade(self, flag: str = "--create-namespace", **values: Any) -> str:
        flags = ("--install", "--reset-values", flag)
        chosen = {**REGISTRY, "crds.keep": False, **values}
        return self.say("upgrade", str(CHART), *flags, **chosen)

    def hooks(self) -> list[Manifest]:
        return [one for one in yaml.safe_load_all(self.say("get hooks")) if one]

    def kubectl(self, *arguments: str, stdin: Manifest | None = None, check: bool = True) -> str:
        program = str(layout().state / "bin/kubectl")
        command = [program, f"--kubeconfig={self.kubeconfig}", "-n", NAMESPACE, *arguments]
        done = subprocess.run(
            command, input=json.dumps(stdin), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> Manifest:
        found: Manifest = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found


@pytest.fixture
def installed(each_helm: Helm, kubeconfig: Path) -> Iterator[Installed]:
    """Nothing is installed yet; nothing stays."""
    found = Installed(each_helm, kubeconfig)
    found.kubectl("delete", "crd", "marljobs.flexmarl.io", "--ignore-not-found")  # of other tests
    yield found
    found.say("uninstall", "--ignore-not-found")
    found.kubectl("delete", "storageclass", "--all")
    found.kubectl("delete", "secret,persistentvolumeclaim", "--all", "--wait=false")
    end = time.monotonic() + 60
    while "marljobs.flexmarl.io" in found.kubectl("get", "crd", "-o", "name"):
        assert time.monotonic() < end


def test_a_cluster_without_storage_classes_is_told_what_jobs_need(installed: Installed) -> None:
    said = installed.upgrade()
    assert "WARNING: the store keeps its data in an emptyDir" in said
    assert "WARNING: A job keeps its run on a claim" in said
    assert "helm test" not in said
    [pod] = [one for one in installed.hooks() if one["kind"] in ("Pod", "MARLJob")]
    words = pod["spec"]["containers"][0]["args"]
    done = subprocess.run(["python3", "-c", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no default StorageClass" in done.stderr
    assert "test.storageClass" in done.stderr
    installed.kubectl("create", "-f", "-", stdin=storage_class())
    said = installed.upgrade()
    assert "WARNING" not in said
    assert "helm test demo --namespace flexmarl-system --timeout 600s" in said
    assert [one for one in installed.hooks() if one["kind"] == "MARLJob"]


def test_a_default_class_of_an_old_cluster_is_one(installed: Installed) -> None:
    beta = "storageclass.beta.kubernetes.io/is-default-class"
    installed.kubectl("create", "-f", "-", stdin=storage_class(beta))
    assert "WARNING" not in installed.upgrade()


def test_an_upgrade_keeps_the_stores_password(installed: Installed) -> None:
    installed.upgrade()
    before = installed.get("secret", "demo-flexmarl-store")["data"]
    installed.upgrade(controller_logLevel="DEBUG")
    assert installed.get("secret", "demo-flexmarl-store")["data"] == before


def test_who_administers_a_namespace_alone_can_install(installed: Installed) -> None:
    """What the README says; Roles and definition are somebody else's."""
    installed.kubectl("create", "namespace", NAMESPACE, check=False)  # that of another test
    what = "--resource=namespaces,storageclasses"
    for words in (
        ("clusterrole", "looks", "--verb=get,list", what),
        ("clusterrolebinding", "looks", "--clusterrole=looks", "--user=alone"),
        ("rolebinding", "alone", "--clusterrole=admin", "--user=alone"),
    ):
        installed.kubectl("create", *words, check=False)
    end, can_i = time.monotonic() + 60, ("auth", "can-i", "list", "secrets", "--as=alone")
    while "yes" not in installed.kubectl(*can_i, check=False):  # Kubernetes puts `admin` together
        assert time.monotonic() < end
    off = dict.fromkeys(("crds_enabled", "rbac_create", "rbac_aggregate"), False)
    installed.upgrade("--kube-as-user=alone", watch_namespaces=[NAMESPACE], **off)
    assert installed.get("deployment", "demo-flexmarl")


def test_two_releases_serve_a_cluster_each_its_own_namespaces(installed: Installed) -> None:
    installed.upgrade(watch_namespaces=["default"])
    values = {**REGISTRY, "crds.enabled": False, "watch.namespaces": [NAMESPACE]}
    at = ("other", "-n", NAMESPACE, f"--kubeconfig={installed.kubeconfig}")
    done = installed.helm.run("install", *at, str(CHART), *settings(values))
    assert done.returncode == 0, done.stderr
    done = installed.helm.run("uninstall", *at)
    assert done.returncode == 0, done.stderr
    assert installed.get("deployment", "demo-flexmarl")
