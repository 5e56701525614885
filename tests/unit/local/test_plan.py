import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.job import MARLJob, RestartPolicy
from flexmarl.local.plan import (
    LONGEST_BACKOFF,
    LocalLayout,
    ProcessPlan,
    next_restart,
    plan_processes,
)
from flexmarl.local.roles import DRAIN_ORDER, MODULES
from flexmarl.runtime.settings import Settings

LAYOUT = LocalLayout(
    job_file=Path("/runs/team/job.yaml"),
    base_dir=Path("/jobs"),
    run_dir=Path("/runs/team"),
    sockets=Path("/tmp/flexmarl-1234"),
    shm_dir=Path("/dev/shm"),
    job_uid="uid",
    token="secret",
    store_password="pw",
    resume_from=Path("/runs/team/checkpoints/step-00000003"),
)


def job(**spec: Any) -> MARLJob:
    model = {"uri": "random://llama?hidden=8"}
    policies = [{"name": "solver", "model": model}, {"name": "verifier", "model": model}]
    document: dict[str, Any] = {
        "metadata": {"name": "team"},
        "spec": {
            "policies": policies,
            "agents": [{"name": "solver", "policy": "solver"}],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "gym://chain_sum"},
            "steps": 1,
        },
    }
    document["spec"] |= spec
    return MARLJob.model_validate(document)


def planned(**spec: Any) -> dict[str, ProcessPlan]:
    return {plan.name: plan for plan in plan_processes(job(**spec), LAYOUT)}


def settings(plan: ProcessPlan, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in plan.settings.items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_every_process_of_a_job_is_planned_once() -> None:
    roles = {"engine": {"replicas": 2}, "worker": {"replicas": 2}, "trainer": {"replicas": 1}}
    assert list(planned(roles=roles)) == [
        "store",
        "experience",
        "weights",
        "engine-solver-0",
        "engine-solver-1",
        "engine-verifier-0",
        "engine-verifier-1",
        "trainer-0",
        "rollout-worker-0",
        "rollout-worker-1",
        "orchestrator",
    ]


def test_the_settings_are_those_that_a_process_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(planned()["orchestrator"], monkeypatch)
    assert found.listen == "unix:///tmp/flexmarl-1234/orchestrator.sock"
    assert found.workers == ["unix:///tmp/flexmarl-1234/rollout-worker-0.sock"]
    assert found.trainers == ["unix:///tmp/flexmarl-1234/trainer-0.sock"]
    assert found.engines == {
        name: [f"unix:///tmp/flexmarl-1234/engine-{name}-0.sock"] for name in ("solver", "verifier")
    }
    assert (found.job_uid, found.token) == ("uid", "secret")
    assert found.resume_from == "/runs/team/checkpoints/step-00000003"


def test_only_those_that_need_the_stores_password_get_it() -> None:
    holders = {name for name, plan in planned().items() if "pw" in json.dumps(plan.settings)}
    assert holders == {"store", "experience"}
    assert planned()["store"].settings["FLEXMARL_STORE_URL"] == (
        "unix://job:pw@/tmp/flexmarl-1234/store.sock"
    )


def test_a_store_of_the_users_own_is_not_embedded() -> None:
    plans = planned(store={"url": "redis://example:6379"})
    assert "store" not in plans
    assert "FLEXMARL_STORE_URL" not in plans["experience"].settings


def test_external_policies_have_no_engine_and_untrained_ones_no_trainer() -> None:
    external = {
        "name": "judge",
        "engine": {"kind": "openai", "openai": {"baseUrl": "http://x", "model": "m"}},
        "training": {"algorithm": "none"},
    }
    frozen = {
        "name": "solver",
        "model": {"uri": "random://llama?hidden=8"},
        "engine": {"kind": "scripted"},
        "training": {"algorithm": "none"},
    }
    plans = planned(policies=[external, frozen])
    assert list(plans) == [
        "store",
        "experience",
        "engine-solver-0",
        "rollout-worker-0",
        "orchestrator",
    ]
    assert not any(plan.heavy for plan in plans.values())


def test_processes_that_import_torch_are_heavy() -> None:
    scripted = {
        "name": "judge",
        "model": {"uri": "random://llama?hidden=8"},
        "engine": {"kind": "scripted"},
    }
    plans = planned(policies=[scripted, {"name": "solver", "model": scripted["model"]}])
    assert {name for name, plan in plans.items() if plan.heavy} == {"engine-solver-0", "trainer-0"}


def test_each_role_has_a_module_and_a_place_in_the_drain_order() -> None:
    roles = {plan.role for plan in planned().values()}
    assert roles == {role for stage in DRAIN_ORDER for role in stage}
    assert set(MODULES) - roles == {"controller"}  # of a cluster alone


def test_socket_paths_stay_below_the_limit_of_the_kernel() -> None:
    name = "p" * 40
    policy = {"name": name, "model": {"uri": "random://llama?hidden=8"}}
    plans = planned(policies=[policy], roles={"engine": {"replicas": 256}})
    spare = 30 - len("/tmp")  # what a longer directory for temporary files may take
    assert max(
        len(plan.settings["FLEXMARL_LISTEN"]) - len("unix://") for plan in plans.values()
    ) <= (107 - spare)


@given(st.integers(0, 50), st.floats(0.01, 100), st.integers(0, 10_000))
def test_restarts_are_bounded_and_wait_longer_each_time(
    most: int, backoff: float, restarts: int
) -> None:
    policy = RestartPolicy(max=most, backoff=backoff)
    delay, following = next_restart(policy, restarts), next_restart(policy, restarts + 1)
    assert (delay is None) == (restarts >= most)
    if delay is not None:
        assert min(backoff, LONGEST_BACKOFF) <= delay <= LONGEST_BACKOFF
        assert following is None or following == min(delay * 2, LONGEST_BACKOFF)


def test_the_first_restart_waits_for_the_backoff_itself() -> None:
    policy = RestartPolicy(max=7, backoff=1)
    assert [next_restart(policy, n) for n in range(8)] == [1, 2, 4, 8, 16, 30, 30, None]


def test_policies_of_a_pool_share_its_least_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"uri": "random://llama?hidden=8"}
    plans = planned(
        pools=[{"name": "few", "role": "engine", "min": 2, "max": 4}],
        policies=[
            {"name": "solver", "model": model},
            *({"name": name, "model": model, "pools": ["few"]} for name in ("a", "b", "c")),
        ],
    )
    assert [name for name in plans if name.startswith("engine-")] == [
        "engine-solver-0",
        "engine-few-0",
        "engine-few-1",
    ]
    assert plans["engine-few-0"].heavy
    shared = settings(plans["engine-few-1"], monkeypatch)
    assert (shared.pool, shared.policy) == ("few", "")
    found = settings(plans["orchestrator"], monkeypatch)
    assert found.pools == {"few": [LAYOUT.address("engine-few-0"), LAYOUT.address("engine-few-1")]}
    assert list(found.engines) == ["solver"]


def test_slots_of_a_pool_train_its_policies_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"uri": "random://llama?hidden=8"}
    plans = planned(
        pools=[{"name": "big", "role": "trainer", "max": 2}],
        policies=[
            {"name": "solver", "model": model},
            *({"name": name, "model": model, "pools": ["big"]} for name in ("a", "b", "c")),
        ],
    )
    found = settings(plans["orchestrator"], monkeypatch)
    names = ["trainer-0", "trainer-big-0", "trainer-big-1"]
    assert [name for name in plans if name.startswith("trainer")] == names
    assert found.trainers == [LAYOUT.address(name) for name in names]
    big = ["a", "b", "c"]
    assert found.slot_policies == dict(zip(found.trainers, (["solver"], big, big), strict=True))
