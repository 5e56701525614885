"""What becomes of what first containers say."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import seen, subject

from flexmarl.contracts.preparation import (
    CONTAINER,
    Fetching,
    Found,
    Kind,
    Report,
)
from flexmarl.controller import seeing
from flexmarl.controller.findings import find
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import JobState, Observed, Pod, Workload
from flexmarl.controller.phase import Phase, next_phase
from flexmarl.controller.preparation import asked, how_far
from flexmarl.controller.status import next_status

SPEC = subject().job.spec
GONE = Found(reason="SourceNotFound", message="hf://a/b@x: none", kind=Kind.HOPELESS, fetching=True)
AWAY = Found(reason="SourceUnreachable", message="hub: down", kind=Kind.PASSING, fetching=True)
SMALL = Found(reason="VolumeFull", message="/cache has 0 MiB", kind=Kind.PASSING)
BLIND = Found(reason="GPUsNotVisible", message="2 given, 0 seen", kind=Kind.WARNING)


def manifest(
    state: dict[str, Any], role: str = "engine", *, phase: str = "Pending", **more: Any
) -> Manifest:
    """A pod as the API server has it, its first container in `state`."""
    return {
        "metadata": {
            "name": f"team-{role}-0",
            "uid": f"{role}-{phase}",
            "labels": {"flexmarl.io/role": role},
        },
        "spec": {"initContainers": [{"name": CONTAINER}], "containers": [{"name": "main"}]},
        "status": {
            "phase": phase,
            "initContainerStatuses": [
                {"name": CONTAINER, "restartCount": 4, "state": state, **more}
            ],
            "containerStatuses": [
                {"name": "main", "restartCount": 0, "state": {"waiting": {"reason": "PodIniti"}}}
            ],
        },
    }


def ended(code: int, *found: Found, text: str = "") -> dict[str, Any]:
    said = text or Report(findings=list(found)).text()
    return {"terminated": {"exitCode": code, "reason": "Error", "message": said}}


def of(*manifests: Manifest) -> Observed:
    pods_ = tuple(seeing.pod(one) for one in manifests)
    # The orchestrator's Job counts one.
    workload = Workload("StatefulSet", "x", "engine", len(pods_) - 1)
    return seen(pods=pods_, workloads=(workload,))


def conditions(what: Observed, phase: Phase = Phase.STARTING) -> dict[str, tuple[str, str, str]]:
    status = next_status({}, what, find(what), phase, SPEC)
    return {
        one["type"]: (one["status"], one["reason"], one["message"]) for one in status["conditions"]
    }


def test_pods_that_have_what_they_need_are_a_condition() -> None:
    done = manifest(ended(0))
    found = conditions(of(done))
    assert found["ModelsFetched"] == ("True", "Fetched", "")
    assert found["PreflightPassed"] == ("True", "Passed", "")
    busy = conditions(of(done, manifest({"running": {}}, "trainer")))
    assert busy["ModelsFetched"] == ("False", "Fetching", "waiting for team-trainer-0")
    assert busy["PreflightPassed"] == ("False", "Checking", "waiting for team-trainer-0")
    few = seen(pods=of(done).pods, workloads=(Workload("Deployment", "x", "rollout-worker", 3),))
    assert conditions(few)["ModelsFetched"][1:] == ("Fetching", "waiting for pods to be made")


def line(**said: Any) -> str:
    return json.dumps({"process": "preflight", "level": "info", **said})


FAR = Fetching("hf://a/b", 1229, 14848, 85.2)
EVENT = line(event=Fetching.EVENT, **asdict(FAR))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([EVENT], "1.2 of 14.5 GiB of hf://a/b, 85.2 MiB/s"),
        ([line(event=Fetching.EVENT, **asdict(Fetching("s3://a/b", 3, 700, 0.5)))],
         "3 of 700 MiB of s3://a/b, 0.5 MiB/s"),
        ([EVENT, line(event=Fetching.INTERRUPTED, uri="hf://a/b", why="answers 503", attempt=1)],
         "hf://a/b was interrupted: answers 503; it is tried again"),
        ([EVENT, line(event=Fetching.WAITING, folder="/cache/x")], "another pod fetches the same"),
        ([EVENT, "SourceUnchecked: away", '{"event": "fetching"', '{"event": "fetching"}', "[]"],
         "1.2 of 14.5 GiB of hf://a/b, 85.2 MiB/s"),
        (["no JSON"], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_how_far_a_transfer_is_stands_in_the_log_of_its_process(log: list[str], said: str) -> None:
    assert how_far("\n".join(log).encode()) == said


@given(st.binary())
def test_whatever_stands_in_a_log_it_is_read(log: bytes) -> None:
    assert how_far(log) == ""


def test_models_fetched_says_how_far_those_are_that_are_waited_for() -> None:
    runs = {"running": {"startedAt": "1970-01-01T00:16:00Z"}}
    what = of(manifest(runs), manifest(ended(0), "trainer"))
    (pod,) = asked(what)
    assert (pod.name, pod.preparing_since) == ("team-engine-0", 960.0)
    assert not asked(replace(what, now=961.0))
    far = replace(what, fetches={pod.uid: "3 of 700 MiB of s3://a/b, 0.5 MiB/s"})
    assert conditions(far)["ModelsFetched"] == (
        "False",
        "Fetching",
        "waiting for team-engine-0 (team-engine-0: 3 of 700 MiB of s3://a/b, 0.5 MiB/s)",
    )
    silent = replace(what, fetches={pod.uid: ""})
    assert conditions(silent)["ModelsFetched"][2] == "waiting for team-engine-0"
    done = replace(of(manifest(ended(0))), fetches={"engine-Pending": "3 of 700 MiB"})
    assert conditions(done)["ModelsFetched"] == ("True", "Fetched", "")


def test_a_source_that_may_come_back_is_waited_for() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    what = of(manifest(waits, lastState=ended(75, AWAY)))
    (found,) = find(what)
    assert (found.reason, found.fatal) == ("SourceUnreachable", False)
    assert found.message == "team-engine-0: hub: down"
    assert conditions(what)["ModelsFetched"][:2] == ("False", "SourceUnreachable")
    assert conditions(what)["PreflightPassed"][:2] == ("True", "Passed")
    assert next_phase(Phase.STARTING, what, find(what)) is Phase.STARTING


def test_trying_again_is_no_restart() -> None:
    pod = seeing.pod(manifest({"running": {}}, lastState=ended(75, AWAY)))
    assert (pod.restarts, pod.crashes, pod.ended) == (0, 0, None)
    failed = seeing.pod(manifest(ended(75, AWAY), "orchestrator", phase="Failed"))
    assert failed.restarts == 0


@pytest.mark.parametrize("role", ["engine", "orchestrator"])
def test_a_source_that_is_not_there_ends_the_job_in_its_words(role: str) -> None:
    phase = "Failed" if role == "orchestrator" else "Pending"
    what = of(manifest(ended(3, GONE), role, phase=phase))
    after = next_phase(Phase.STARTING, what, find(what))
    assert after is Phase.FAILED
    status = next_status({}, what, find(what), after, SPEC)
    assert status["reason"] == "SourceNotFound"
    assert status["message"] == f"team-{role}-0: hf://a/b@x: none"
    assert conditions(what, after)["ModelsFetched"][:2] == ("False", "SourceNotFound")


@pytest.mark.parametrize("role", ["engine", "orchestrator"])
def test_a_source_that_is_not_there_any_more_ends_no_job_that_has_run(role: str) -> None:
    phase = "Failed" if role == "orchestrator" else "Pending"
    what = replace(of(manifest(ended(3, GONE), role, phase=phase)), ran=True)
    what = replace(what, orchestrator=JobState.ACTIVE)
    (found,) = find(what)
    assert (found.reason, found.fatal) == ("SourceNotFound", False)
    assert found.message.startswith(f"team-{role}-0: hf://a/b@x: none; ")
    assert next_phase(Phase.RUNNING, what, find(what)) is Phase.RUNNING
    assert next_phase(Phase.STARTING, what, find(what)) is Phase.STARTING
    assert conditions(what, Phase.RUNNING)["ModelsFetched"][:2] == ("False", "SourceNotFound")


def test_a_first_container_of_the_orchestrator_that_gives_up_unheard_ends_the_job() -> None:
    """Its Job does not count that end."""
    what = of(manifest(ended(3, text="killed in the middle of its report"), "orchestrator"))
    (found,) = find(what)
    assert (found.reason, found.fatal) == ("ProcessFailed", True)


def test_a_pod_with_too_little_fails_its_preflight_not_the_fetching() -> None:
    what = of(manifest({"running": {}}, lastState=ended(75, SMALL)))
    found = conditions(what)
    assert found["PreflightPassed"][:2] == ("False", "VolumeFull")
    assert found["ModelsFetched"][:2] == ("False", "Fetching")


def test_a_warning_does_not_keep_a_job_from_running() -> None:
    what = of(manifest(ended(0, BLIND)))
    assert find(what) == []
    assert conditions(what)["PreflightPassed"] == (
        "False",
        "GPUsNotVisible",
        "team-engine-0: 2 given, 0 seen",
    )
    assert conditions(what)["ModelsFetched"][0] == "True"


def test_a_missing_secret_is_told_by_both() -> None:
    says = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
    what = of(manifest({"waiting": says}))
    (found,) = find(what)
    assert found.reason == "SecretMissing"
    kind, reason, message = conditions(what)["ModelsFetched"]
    assert (kind, reason) == ("False", "SecretMissing")
    assert 'secret "hub" not found; create the Secret' in message


def test_a_first_container_that_breaks_counts_as_any_other() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    broken = ended(1, text="Traceback\n  ...\nMemoryError\n")
    what = of(manifest(waits, lastState=broken))
    found = {one.reason: one for one in find(what)}
    assert set(found) == {"ContainerRestarting", "RestartsExceeded"}
    assert found["RestartsExceeded"].fatal
    assert found["ContainerRestarting"].message.endswith("MemoryError")


def test_a_pod_that_failed_is_forgotten_once_the_next_has_got_further() -> None:
    old = manifest(ended(75, AWAY), "orchestrator", phase="Failed")
    assert [one.reason for one in find(of(old))] == ["SourceUnreachable"]
    new = manifest(ended(0), "orchestrator", phase="Running")
    assert find(of(old, new)) == []
    assert conditions(seen(pods=of(old, new).pods, workloads=()))["ModelsFetched"][0] == "True"


def test_pods_without_a_first_container_are_prepared() -> None:
    """Those of an earlier version of the controller."""
    plain = manifest({})
    plain["spec"]["initContainers"] = []
    plain["status"]["initContainerStatuses"] = []
    pod: Pod = seeing.pod(plain)
    assert pod.prepared
