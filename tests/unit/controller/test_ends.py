"""Which ends of containers are crashes, however seldom anybody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import seen, subject

from flexmarl.contracts.preparation import CONTAINER, PASSING
from flexmarl.controller import seeing
from flexmarl.controller.ends import counted, of_pod, read
from flexmarl.controller.findings import find
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Ends
from flexmarl.controller.phase import Phase
from flexmarl.controller.status import next_status
from flexmarl.runtime.process import HOPELESS

SPEC = subject().job.spec
WAIT, CRASH = PASSING, 1
codes = st.lists(st.sampled_from([WAIT, CRASH, 137, 0]), min_size=1, max_size=12)
STATES = ("ended", "waits", "runs")


def end(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": "words"}}


def container(ended: Sequence[int], how: str, name: str = "main") -> Manifest:
    """As the kubelet has it after so many ends."""
    last = end(ended[-1])
    before = end(ended[-2]) if len(ended) > 1 else {}
    again = {"name": name, "restartCount": len(ended) - 1}
    if how == "ended":
        return again | {"state": last, "lastState": before}
    if how == "waits":
        return again | {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}
    return {"name": name, "restartCount": len(ended), "state": {"running": {}}, "lastState": last}


def looked(ended: Sequence[int], looks: Mapping[int, str]) -> Ends:
    """What is counted when it is looked at after these ends only."""
    found = Ends()
    for number, how in sorted(looks.items()):
        found = counted(found, container(ended[:number], how))
    return found


def crashes(ended: Sequence[int]) -> int:
    return sum(code != WAIT for code in ended)


@given(codes, st.lists(st.sampled_from(STATES), min_size=12, max_size=12))
def test_who_looks_after_each_end_counts_every_crash_and_no_wait(
    ended: list[int], hows: list[str]
) -> None:
    looks = {number + 1: hows[number] for number in range(len(ended))}
    assert looked(ended, looks) == Ends(len(ended), crashes(ended))


@given(codes, st.data())
def test_looking_again_counts_nothing_again(ended: list[int], data: st.DataObject) -> None:
    before = Ends(all=data.draw(st.integers(0, len(ended))))
    first = counted(before, container(ended, "waits"))
    for how in ("waits", "runs", "ended"):
        assert counted(first, container(ended, how)) == first


@given(codes, st.dictionaries(st.integers(1, 12), st.sampled_from(STATES), min_size=1))
def test_whoever_looks_seldom_miscounts_within_bounds(
    ended: list[int], looks: dict[int, str]
) -> None:
    looks = {number: how for number, how in looks.items() if number <= len(ended)}
    found = looked(ended, looks)
    met = ended[: max(looks, default=0)]
    assert found.all == len(met)
    assert found.crashes <= len(met)
    if len({code == WAIT for code in met}) == 1:  # it does one thing only
        assert found.crashes == crashes(met)
    first = ended[: min(looks, default=0)]
    if first and first[-1] == WAIT:  # known to wait from the first look on
        assert found.crashes <= crashes(met)


def test_an_end_that_came_with_the_node_is_no_crash() -> None:
    for reason in ("Unknown", "ContainerStatusUnknown"):
        lost = {"name": "main", "restartCount": 1, "lastState": end(255, reason)}
        assert counted(Ends(), {**lost, "state": {"running": {}}}) == Ends(1, 0)


def test_a_container_of_which_no_end_is_left_to_be_met_has_not_crashed() -> None:
    """The kubelet keeps one that ended, and the first container's is its success."""
    done = {"name": CONTAINER, "restartCount": 4, "state": end(0, "Completed")}
    assert counted(Ends(), done, completes=True) == Ends(4, 0)
    assert counted(Ends(), done | {"lastState": end(137)}, completes=True) == Ends(4, 1)
    assert (
        counted(Ends(), {"name": "main", "restartCount": 4, "state": {"running": {}}}).crashes == 0
    )


def test_a_count_that_the_runtime_lost_takes_nothing_back() -> None:
    crashed = counted(Ends(), container([1, 1, 1], "runs"))
    anew = counted(crashed, container([1], "runs"))
    assert anew == Ends(1, 3)
    assert counted(anew, container([1, 1], "runs")) == Ends(2, 4)


def manifest(*, first: Sequence[Manifest] = (), **more: Any) -> Manifest:
    """A pod with a sidecar beside its first container and main."""
    spec = {
        "initContainers": [{"name": CONTAINER}, {"name": "weights", "restartPolicy": "Always"}],
        "containers": [{"name": "main"}],
    }
    status = {"phase": "Running", "initContainerStatuses": [*first], **more}
    labels = {"flexmarl.io/role": "experience"}
    metadata = {"name": "team-experience-0", "uid": "u", "labels": labels}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_first_container_that_has_done_its_work_has_not_ended() -> None:
    done = {"name": CONTAINER, "restartCount": 0, "state": end(0, "Completed")}
    assert of_pod(manifest(first=[done]), {}).ends == {}
    again = {"name": CONTAINER, "restartCount": 1, "lastState": end(0), "state": {"running": {}}}
    assert of_pod(manifest(first=[again]), {}).crashes == 0  # its sandbox was made anew
    beside = {"name": "weights", "restartCount": 1, "lastState": end(0), "state": {"running": {}}}
    assert of_pod(manifest(first=[beside]), {}).crashes == 1


@pytest.mark.parametrize(
    ("pod", "restarts"),
    [
        (manifest(containerStatuses=[container([1], "waits")]), 0),
        (manifest(containerStatuses=[container([1], "runs")]), 1),
        (manifest(containerStatuses=[container([1], "ended")], phase="Failed"), 1),
        (manifest(containerStatuses=[container([WAIT], "ended")], phase="Failed"), 0),
        (manifest(containerStatuses=[container([HOPELESS], "ended")], phase="Failed"), 0),
        (manifest(phase="Failed", reason="OutOfcpu"), 0),
        (manifest(containerStatuses=[container([WAIT, 1, WAIT], "runs")]), 0),
    ],
)
def test_a_restart_is_what_follows_a_crash(pod: Manifest, restarts: int) -> None:
    assert of_pod(pod, {}).restarts == restarts


def told(before: Mapping[str, Any], pod: Manifest) -> tuple[dict[str, Any], list[str]]:
    """The status after a look, and what is found."""
    known = read(before).get("u")
    what = seen(pods=(seeing.pod(pod, known),), limits={"experience": 1})
    found = find(what)
    return next_status(before, what, found, Phase.RUNNING, SPEC), [one.reason for one in found]


def test_waiting_for_its_store_spends_no_restart_of_a_service() -> None:
    status: dict[str, Any] = {}
    ended: list[int] = []
    for code in (*[WAIT] * 9, 1, *[WAIT] * 3):
        ended.append(code)
        status, found = told(status, manifest(containerStatuses=[container(ended, "waits")]))
        assert "RestartsExceeded" not in found
    status, _ = told(status, manifest(containerStatuses=[container(ended, "runs")]))
    assert status["restarts"] == {"experience": 1}
    assert status["ends"] == {"u/main": {"all": 13, "crashes": 1}}
    ended.append(1)
    status, found = told(status, manifest(containerStatuses=[container(ended, "waits")]))
    assert "RestartsExceeded" in found


def test_a_first_container_that_waited_and_then_breaks_has_crashed_once() -> None:
    status: dict[str, Any] = {}
    ended = [WAIT] * 20
    first = container(ended, "waits", CONTAINER)
    status, _ = told(status, manifest(first=[first]))
    first = container([*ended, 137], "waits", CONTAINER)
    status, found = told(status, manifest(first=[first]))
    assert found == ["ContainerRestarting"]
    assert status["ends"] == {f"u/{CONTAINER}": {"all": 21, "crashes": 1}}
    assert "ends" not in next_status(status, seen(), [], Phase.RUNNING, SPEC)
