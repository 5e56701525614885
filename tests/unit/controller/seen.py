"""Jobs and observations for tests of the controller's decisions."""

from typing import Any

from hypothesis import strategies as st

from flexmarl.contracts.job import MARLJob
from flexmarl.controller.observed import Ended, Finding, JobState, Observed, Pod, Progress, Workload
from flexmarl.controller.render.parts import Installation, Subject

MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}
INSTALLATION = Installation(
    images={"slim": "registry.example/slim:1", "trainer": "registry.example/trainer:1"},
    namespace="flexmarl",
)


def document(name: str = "team", policies: int = 2, **spec: Any) -> dict[str, Any]:
    names = [f"policy-{number}" for number in range(policies)]
    return {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": name, "namespace": "research"},
        "spec": {
            "policies": [
                {"name": one, "model": MODEL, "engine": {"kind": "scripted"}} for one in names
            ],
            "agents": [{"name": f"agent-{one}", "policy": one} for one in names],
            "workflow": {"name": "debate"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 3,
            **spec,
        },
    }


def subject(plain: dict[str, Any] | None = None) -> Subject:
    plain = plain or document()
    job = MARLJob.model_validate(plain)
    return Subject(job, "0f3c-uid", plain, "token", "redis://user:password@store:6379/0")


def seen(**what: Any) -> Observed:
    return Observed(**{"now": 1000.0, "name": "team", **what})


def a_pod(role: str = "engine", **what: Any) -> Pod:
    return Pod(**{"name": f"team-{role}-0", "uid": f"uid-{role}", "role": role, **what})


pods = st.builds(
    Pod,
    name=st.sampled_from(["a", "b", "c"]),
    uid=st.sampled_from(["1", "2", "3"]),
    role=st.sampled_from(["orchestrator", "engine", "trainer", "rollout-worker"]),
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
    ready=st.booleans(),
    deleting=st.booleans(),
    restarts=st.integers(0, 9),
    crashes=st.integers(0, 9),
    waiting=st.sampled_from(["", "ImagePullBackOff", "CrashLoopBackOff"]),
    ended=st.none() | st.builds(Ended, exit_code=st.sampled_from([1, 3, 137])),
)
progress = st.none() | st.builds(
    Progress, phase=st.just("Running"), step=st.integers(0, 3), saved=st.integers(-1, 3)
)
observations = st.builds(
    Observed,
    now=st.floats(1e9, 2e9),
    name=st.just("team"),
    suspend=st.booleans(),
    deadline=st.none() | st.floats(1, 1e6),
    problems=st.sampled_from([(), ("spec.steps: too few",)]),
    orchestrator=st.sampled_from(JobState),
    pods=st.lists(pods, max_size=4, unique_by=lambda pod: pod.uid).map(tuple),
    workloads=st.lists(
        st.builds(Workload, kind=st.just("StatefulSet"), name=st.just("x"), role=st.just("engine"),
                  replicas=st.integers(0, 2)), max_size=2,
    ).map(tuple),
    progress=progress,
    findings=st.sampled_from([(), (Finding("QuotaExceeded", "quota"),)]),
)  # fmt: skip
