"""What the controller and the chart's users may do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.contract.chart.helm import NAMESPACE, Helm, Manifest, identities, one

Right = tuple[str, str, str]
NODES: Right = ("", "nodes", "list")
HOME: Right = ("", "namespaces", "get")
"""Of the release's own namespace only."""


def rights(roles: Iterable[Manifest]) -> set[Right]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def bound(manifests: list[Manifest], account: str) -> list[Manifest]:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    refs = [
        (m["roleRef"]["kind"], m["metadata"].get("namespace", ""), m["roleRef"]["name"])
        for m in manifests
        if m["kind"].endswith("RoleBinding") and m["subjects"] == [subject]
    ]
    return [
        m
        for m in manifests
        if (m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) in refs
    ]


def test_nothing_is_granted_by_wildcard(helm: Helm) -> None:
    for _, resource, verb in rights(bound(helm.render(), "demo-flexmarl")):
        assert "*" not in (resource, verb)
        assert verb not in {"escalate", "bind", "impersonate", "deletecollection"}


def test_it_may_not_touch_what_gives_rights(helm: Helm) -> None:
    groups = {group for group, _, _ in rights(bound(helm.render(), "demo-flexmarl"))}
    assert not groups & {"rbac.authorization.k8s.io", "apiextensions.k8s.io"}


def test_serving_namespaces_it_may_do_the_same_in_them_and_nothing_elsewhere(helm: Helm) -> None:
    everywhere = rights(bound(helm.render(), "demo-flexmarl"))
    chosen = {"watch.namespaces": ["blue", "green"], "rbac.nodes": False}
    roles = bound(helm.render(chosen), "demo-flexmarl")
    where = {role["metadata"]["namespace"]: rights([role]) for role in roles}
    assert {role["kind"] for role in roles} == {"Role"}
    assert where == {
        "blue": everywhere - {NODES, HOME},
        "green": everywhere - {NODES, HOME},
        NAMESPACE: {HOME},
    }


def test_of_namespaces_it_may_read_its_own_only(helm: Helm) -> None:
    for watched in ([], ["blue"], ["blue", NAMESPACE]):
        roles = bound(helm.render({"watch.namespaces": watched}), "demo-flexmarl")
        [role] = [role for role in roles if HOME in rights([role])]
        assert (role["kind"], role["metadata"]["namespace"]) == ("Role", NAMESPACE)
        assert role["rules"][0]["resourceNames"] == [NAMESPACE]


def test_of_nodes_it_may_only_list_them_and_not_at_all_where_that_is_off(helm: Helm) -> None:
    for namespaces in ([], ["blue"]):
        watched = {"watch.namespaces": namespaces}
        may = rights(bound(helm.render(watched), "demo-flexmarl"))
        assert {right for right in may if right[1] == "nodes"} == {NODES}
        may_not = rights(bound(helm.render({**watched, "rbac.nodes": False}), "demo-flexmarl"))
        assert may_not == may - {NODES}


def test_rights_can_be_left_to_others(helm: Helm) -> None:
    manifests = helm.render({"rbac.create": False, "rbac.aggregate": False})
    kinds: Any = [kind for kind, _, name in identities(manifests) if not name.endswith("-test")]
    assert not any("Role" in kind for kind in kinds)


def test_who_may_edit_a_namespace_may_edit_its_jobs(helm: Helm) -> None:
    manifests = helm.render()
    view = one(manifests, "ClusterRole", f"{NAMESPACE}:demo-flexmarl-view")
    edit = one(manifests, "ClusterRole", f"{NAMESPACE}:demo-flexmarl-edit")
    assert {verb for _, _, verb in rights([view])} == {"get", "list", "watch"}
    assert {resource for _, resource, _ in rights([edit])} == {"marljobs"}
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"


def test_the_pod_of_helm_test_may_read_its_job_only(helm: Helm) -> None:
    [role] = bound(helm.render(), "demo-flexmarl-test")
    assert role["rules"] == [
        {
            "apiGroups": ["flexmarl.io"],
            "resources": ["marljobs"],
            "resourceNames": ["demo-flexmarl-test"],
            "verbs": ["get"],
        }
    ]
