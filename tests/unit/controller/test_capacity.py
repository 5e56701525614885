"""What nodes have left, and how it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.controller.capacity import Room, admits, compared, empty, occupy, requests


def container(**asked: str) -> dict[str, object]:
    return {"resources": {"requests": asked}}


def test_a_pod_asks_for_containers_and_sidecars_together_or_for_what_comes_before_them() -> None:
    spec = {
        "containers": [container(cpu="1"), {"resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        "initContainers": [
            {**container(cpu="500m"), "restartPolicy": "Always"},
            container(cpu="2", memory="1Gi"),
        ],
    }
    assert requests(spec) == {"cpu": 2, "memory": 2**30, "nvidia.com/gpu": 2}


def test_what_a_pod_asks_for_itself_counts_instead_of_what_its_containers_do() -> None:
    spec = {
        "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "8", "memory": "8Gi"}},
        "containers": [container(cpu="1", memory="1Gi")],
        "initContainers": [container(cpu="6")],
        "overhead": {"cpu": "1"},
    }
    assert requests(spec) == {"cpu": 5, "memory": 2**30}


def node(name: str, gpus: int, **spec: object) -> dict[str, object]:
    allocatable = {"nvidia.com/gpu": str(gpus), "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kind": name}},
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


def pod(where: str, gpus: int, phase: str = "Running") -> dict[str, object]:
    asked = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"spec": {"nodeName": where, "containers": [asked]}, "status": {"phase": phase}}


def test_what_is_left_is_what_pods_that_run_did_not_take() -> None:
    nodes = [node("a", 4), node("b", 2), node("closed", 8, unschedulable=True)]
    pods = [pod("a", 3), pod("a", 1, "Succeeded"), pod("b", 2), pod("", 9)]
    rooms = empty(nodes)
    for page in (pods[:2], pods[2:]):
        occupy(rooms, page)
    assert {name: room.free["nvidia.com/gpu"] for name, room in rooms.items()} == {"a": 1, "b": 0}


@pytest.mark.parametrize(
    ("spec", "tolerations", "free"),
    [
        ({}, [], True),
        ({"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}, [], True),
        ({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}, [], False),
        ({"taints": [{"key": "gpu", "effect": "NoExecute"}]}, [], False),
        ({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}, [{"key": "gpu"}], True),
        ({"taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}]},
         [{"key": "gpu", "value": "a", "effect": "NoSchedule"}], True),
        ({"taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}]},
         [{"key": "gpu", "operator": "Equal", "value": "b"}], False),
        ({"taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}]},
         [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], False),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]},
         [{"key": "a", "operator": "Exists"}], False),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]},
         [{"operator": "Exists"}], True),
    ],
)  # fmt: skip
def test_what_is_free_is_free_for_who_may_be_there(
    spec: dict[str, object], tolerations: list[dict[str, str]], free: bool
) -> None:
    (room,) = empty([node("a", 4, **spec)]).values()
    assert admits(room, {"kind": "a"}, tolerations) is free
    assert not admits(room, {"kind": "b"}, tolerations)


@pytest.mark.parametrize(
    ("status", "there"), [("True", True), ("False", False), ("Unknown", False)]
)
def test_a_node_that_is_not_ready_has_no_room(status: str, there: bool) -> None:
    lost = node("a", 4)
    lost["status"] = {
        "allocatable": {"cpu": "64"},
        "conditions": [{"type": "Ready", "status": status}],
    }
    assert bool(empty([lost])) is there


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 9))
def test_free_is_what_is_not_taken_and_never_below_nothing(taken: list[int], total: int) -> None:
    rooms = empty([node("a", total)])
    occupy(rooms, [pod("a", each) for each in taken])
    assert rooms["a"].free["nvidia.com/gpu"] == max(0, total - sum(taken))
    assert rooms["a"].total["nvidia.com/gpu"] == total


def test_wanted_and_free_are_told_in_the_units_of_people() -> None:
    gib = 2**30
    there = [Room({}, {"memory": 8.0 * gib}, {"memory": free * gib}) for free in (1.0, 1.5)]
    said = compared("memory", [{"memory": 2.0 * gib}], there, exact=True)
    assert (
        said == "2.0 Gi memory wanted, 2.5 Gi free of 16.0 Gi and no more than 1.5 Gi on one node"
    )
    none = compared("nvidia.com/gpu", [{"nvidia.com/gpu": 1.0}] * 2, there, exact=False)
    assert none == "2 nvidia.com/gpu wanted, at most 0 free of 0"
