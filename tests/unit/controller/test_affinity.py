"""Which nodes a pod requires by its affinity."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import a_pod, seen

from flexmarl.controller import seeing
from flexmarl.controller.affinity import meets, required
from flexmarl.controller.capacity import Room, Rooms
from flexmarl.controller.findings import find

KEYS, VALUES = ("zone", "gpu", "cores"), ("a", "b", "", "7", "-8", "+9", "x7", "9" * 20)
Drawn: TypeAlias = st.SearchStrategy[dict[str, Any]]
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
keys, values = st.sampled_from(KEYS), st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)
sets: Drawn = st.builds(dict, key=keys, operator=st.sampled_from(["In", "NotIn"]), values=values)
flags: Drawn = st.builds(dict, key=keys, operator=st.sampled_from(["Exists", "DoesNotExist"]))
bounds: Drawn = st.builds(
    dict,
    key=keys,
    operator=st.sampled_from(["Gt", "Lt"]),
    values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=1),
)
asked = sets | flags | bounds
names: Drawn = st.builds(
    dict,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(["n1", "n2"]), min_size=1, max_size=1),
)
terms: Drawn = st.builds(
    dict, matchExpressions=st.lists(asked, max_size=3), matchFields=st.lists(names, max_size=2)
)


def one(there: dict[str, str], key: str, operator: str, *wanted: str) -> bool:
    expression = {"key": key, "operator": operator, "values": [*wanted]}
    return meets("n1", there, ({"matchExpressions": [expression]},))


@given(labels, keys, values)
def test_each_word_is_true_where_its_opposite_is_not(
    there: dict[str, str], key: str, wanted: list[str]
) -> None:
    assert one(there, key, "In", *wanted) is (there.get(key) in wanted)
    assert one(there, key, "NotIn", *wanted) is not one(there, key, "In", *wanted)
    assert one(there, key, "Exists") is (key in there)
    assert one(there, key, "DoesNotExist") is not one(there, key, "Exists")


@given(st.integers(-99, 99), st.integers(-99, 99))
def test_numbers_are_compared_as_numbers(there: int, bound: int) -> None:
    assert one({"cores": str(there)}, "cores", "Gt", str(bound)) is (there > bound)
    assert one({"cores": str(there)}, "cores", "Lt", str(bound)) is (there < bound)


@pytest.mark.parametrize("no", ["", "x7", "7.5", "1_0", " 7", "9" * 20, "\u0667"])
@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_what_is_no_number_is_neither_more_nor_less(no: str, operator: str) -> None:
    for there, bound in ((no, "7"), ("7", no)):
        assert not one({"cores": there}, "cores", operator, bound)
    assert not one({}, "cores", operator, "7")


@given(labels, st.lists(terms, max_size=3), terms, asked)
def test_more_terms_rule_no_node_out_and_more_expressions_let_none_in(
    there: dict[str, str], some: list[dict[str, Any]], more: dict[str, Any], each: dict[str, Any]
) -> None:
    before = meets("n1", there, tuple(some))
    assert meets("n1", there, (*some, more)) is (before or meets("n1", there, (more,)))
    if more["matchExpressions"] or more["matchFields"]:
        narrow = {**more, "matchExpressions": [*more["matchExpressions"], each]}
        alone = meets("n1", there, ({"matchExpressions": [each]},))
        assert meets("n1", there, (narrow,)) is (alone and meets("n1", there, (more,)))


def test_a_term_that_asks_for_nothing_is_met_by_no_node_and_no_affinity_by_every_one() -> None:
    assert not meets("n1", {"zone": "a"}, ({},))
    assert not meets("n1", {"zone": "a"}, ())
    assert meets("n1", {}, None)


def test_a_node_is_named_by_its_field() -> None:
    for operator, there in (("In", True), ("NotIn", False)):
        field = {"key": "metadata.name", "operator": operator, "values": ["n1"]}
        assert meets("n1", {}, ({"matchFields": [field]},)) is there
        assert meets("n2", {"metadata.name": "n1"}, ({"matchFields": [field]},)) is not there


def test_what_a_later_kubernetes_asks_keeps_no_node_out() -> None:
    assert one({"zone": "a"}, "zone", "Resembles", "b")


def spec(**affinity: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": affinity}, "containers": []}


def test_only_what_is_required_counts() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    must = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    nothing: list[dict[str, Any]] = [{}, {"affinity": None}, {"affinity": {"podAffinity": {}}}]
    for none in (*nothing, spec(**wish)):
        assert required(none) is None
    assert required(spec(**wish, **must)) == (term,)
    stuck = {"type": "PodScheduled", "status": "False", "message": "1 Insufficient cpu"}
    pod = {"metadata": {"name": "e", "uid": "u"}, "spec": spec(**must)}
    assert seeing.pod({**pod, "status": {"conditions": [stuck]}}).affinity == (term,)


def test_a_node_that_the_affinity_rules_out_has_nothing_free_for_the_pod() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    not_n2 = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]}
    stuck = a_pod(
        unschedulable="0/3 nodes are available: 1 Insufficient nvidia.com/gpu.",
        requests={"nvidia.com/gpu": 2.0},
        affinity=({**zone, **not_n2},),
    )
    have = {"nvidia.com/gpu": 4.0}
    nodes = (
        Room({"zone": "a"}, have, {"nvidia.com/gpu": 1.0}, name="n1"),
        Room({"zone": "a"}, have, have, name="n2"),
        Room({"zone": "b"}, have, have, name="n3"),
    )
    (found,) = find(seen(pods=(stuck,), rooms=Rooms(nodes)))
    assert "2 nvidia.com/gpu wanted, 1 free of 4" in found.message
