"""What is known of objects, whatever comes in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.controller.cache import Cache, Key
from flexmarl.controller.names import JOB_LABEL

KEY = Key("research", "team")


def a(
    kind: str = "Pod", name: str = "one", version: int = 1, uid: str = "1", **more: Any
) -> dict[str, Any]:
    metadata = {
        "name": KEY.name if kind == "MARLJob" else name,
        "namespace": KEY.namespace,
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {JOB_LABEL: KEY.name},
        **more,
    }
    return {"metadata": metadata}


def known(cache: Cache) -> dict[tuple[str, str], str]:
    """Kind and name -> version."""
    objects = cache.objects(KEY)
    found = {place: one["metadata"] for place, one in objects.children.items()}
    if objects.job is not None:
        found["MARLJob", KEY.name] = objects.job["metadata"]
    return {place: metadata["resourceVersion"] for place, metadata in found.items()}


def filled(*objects: dict[str, Any]) -> Cache:
    cache = Cache()
    for one in objects:
        cache.put("Pod", one)
    return cache


def mended(cache: Cache, *listed: dict[str, Any]) -> set[str]:
    """What a resync does that has read `listed` since `begin`; what it has to read in whole."""
    _, other = cache.compare("Pod", listed)
    for one in listed:
        cache.mend("Pod", one)
    return {name for _, _, name in other}


def test_what_is_known_already_names_no_job() -> None:
    cache = Cache()
    assert cache.put("Pod", a(version=7)) == KEY
    assert cache.put("Pod", a(version=7)) is None
    assert cache.put("Pod", a(version=10)) == KEY
    assert cache.put("Pod", a(version=9)) is None
    assert known(cache) == {("Pod", "one"): "10"}


def test_nobodys_objects_are_not_kept() -> None:
    cache = Cache()
    assert cache.put("Pod", a(labels={})) is None
    assert cache.jobs() == []


def histories() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a pod whose name is used three times, in the order of the API server."""
    for life in range(3):
        for step in range(3):
            yield "MODIFIED", a(version=10 * life + step + 1, uid=str(life))
        if life < 2:
            yield "DELETED", a(version=10 * life + 5, uid=str(life))


@given(st.randoms(use_true_random=False))
def test_namesakes_whose_events_cross_each_other_leave_the_last_one(order: random.Random) -> None:
    """Events of one object come in order, those of several in any."""
    lives: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for event in histories():
        lives.setdefault(event[1]["metadata"]["uid"], []).append(event)
    cache = Cache()
    while lives:
        life = order.choice(sorted(lives))
        kind, one = lives[life].pop(0)
        (cache.drop if kind == "DELETED" else cache.put)("Pod", one)
        if not lives[life]:
            del lives[life]
    assert known(cache) == {("Pod", "one"): "23"}


def test_a_resync_drops_what_is_gone_and_brings_what_was_missed() -> None:
    cache = filled(a(name="gone"), a(name="same", version=2), a(name="old", version=3))
    cache.begin()
    listed = [a(name="same", version=2), a(name="old", version=8), a(name="new", version=9)]
    assert mended(cache, *listed) == {"old", "new"}
    assert known(cache) == {("Pod", "same"): "2", ("Pod", "old"): "8", ("Pod", "new"): "9"}
    cache.begin()
    assert mended(cache, *listed) == set()


def test_a_resync_leaves_alone_what_was_told_while_it_read() -> None:
    cache = filled(a(name="deleted"), a(name="changed", version=2))
    cache.begin()
    listed = [a(name="deleted"), a(name="changed", version=2), a(name="brief", version=3)]
    cache.put("Pod", a(name="changed", version=5))
    cache.put("Pod", a(name="made", version=6))
    cache.drop("Pod", a(name="deleted", version=7))
    cache.drop("Pod", a(name="brief", version=8))
    assert mended(cache, *listed) == set()
    assert known(cache) == {("Pod", "changed"): "5", ("Pod", "made"): "6"}


def test_what_is_told_while_single_objects_are_read_counts_too() -> None:
    cache = Cache()
    cache.begin()
    _, other = cache.compare("Pod", [a(name="one", version=2), a(name="two", version=2)])
    assert {name for _, _, name in other} == {"one", "two"}
    cache.drop("Pod", a(name="one", version=3))
    cache.put("Pod", a(name="two", version=4))
    cache.mend("Pod", a(name="one", version=2))
    cache.mend("Pod", a(name="two", version=2))
    assert known(cache) == {("Pod", "two"): "4"}


@given(st.data())
def test_after_a_resync_all_is_as_the_api_server_has_it(data: st.DataObject) -> None:
    """Whatever the watch lost, and whatever it brings while the list is on its way."""
    names, version = ["a", "b", "c"], 0
    there: dict[str, dict[str, Any]] = {}
    cache = Cache()

    def happens(name: str, lost: bool) -> None:
        nonlocal version
        version += 1
        if name in there and data.draw(st.booleans()):
            event = cache.drop
            one = a(name=name, version=version, uid=there.pop(name)["metadata"]["uid"])
        else:
            event = cache.put
            uid = there[name]["metadata"]["uid"] if name in there else str(version)
            one = there[name] = a(name=name, version=version, uid=uid)
        if not lost:
            event("Pod", one)

    for _ in range(data.draw(st.integers(0, 8))):
        happens(data.draw(st.sampled_from(names)), data.draw(st.booleans()))
    cache.begin()
    listed = [*there.values()]
    for _ in range(data.draw(st.integers(0, 4))):
        happens(data.draw(st.sampled_from(names)), lost=False)
    mended(cache, *listed)
    assert known(cache) == {
        ("Pod", name): one["metadata"]["resourceVersion"] for name, one in there.items()
    }


def test_a_job_of_which_nothing_is_left_is_named_once() -> None:
    cache = filled(a())
    cache.begin()
    assert cache.compare("Pod", []) == ({KEY}, set())
    assert cache.jobs() == []
    assert cache.compare("Pod", []) == (set(), set())


def test_a_server_that_was_set_back_is_believed_at_the_next_resync() -> None:
    cache = filled(a(version=900))
    cache.begin()
    assert mended(cache, a(version=30)) == {"one"}
    assert cache.put("Pod", a(version=31)) == KEY


def job(version: int, generation: int = 1, uid: str = "1") -> dict[str, Any]:
    return a("MARLJob", version=version, uid=uid, generation=generation)


@pytest.mark.parametrize(
    ("told", "answer", "left"),
    [
        ([job(3)], job(4), "4"),
        ([job(3), job(5)], job(4), "5"),  # the watch was faster
        ([job(3)], job(6, generation=2), "3"),  # the watch will name the job for its new spec
        ([job(3)], job(4, uid="2"), "3"),
        ([], job(4), None),  # deleted meanwhile: no ghost
    ],
)
def test_a_written_status_undoes_nothing_that_is_newer(
    told: list[dict[str, Any]], answer: dict[str, Any], left: str | None
) -> None:
    cache = Cache()
    for one in told:
        cache.put("MARLJob", one)
    cache.written(answer)
    assert known(cache).get(("MARLJob", KEY.name)) == left
