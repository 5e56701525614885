"""An undisturbed job: every group once, every version everywhere, every file as promised."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.orchestrator.conftest import team
from tests.contract.orchestrator.fakes import STORE_SECONDS
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import rollout_pb2

EVAL = {"data": {"uri": "file://held-out.jsonl"}, "everySteps": 2, "samples": 3, "tasks": 3}


async def test_a_job_plays_every_group_once_and_writes_all_files(
    tmp_path: Path, store_server: Server
) -> None:
    job = make_job(eval=EVAL, checkpoint={"everySteps": 2, "keep": 1})
    async with team(job, tmp_path, store_server) as around:
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()

        train = [r for r in around.requests if r.purpose == rollout_pb2.TRAIN]
        played = Counter((request.id.step, request.id.index) for request in train)
        assert played == {(step, index): 1 for step in range(4) for index in range(6)}
        assert {route.version for r in train for route in r.routes if r.id.step == 3} == {3}
        assert all(times == 1 for times in around.ledger.times.values())
        for engine in around.engines.values():
            assert [version for _, version in engine.loads] == [0, 1, 2, 3, 4]

        metrics = around.lines("metrics")
        assert metrics[0]["agents"]["p0"] == {
            "reward": 1.0,
            "accuracy": 1.0,
            "scored": 12,
            "unscorable": 0,
            "turns": 12,
            "sampled_tokens": 24,
        }
        assert metrics[0]["tokens"] == {"prompt": 96, "sampled": 48}
        assert metrics[3]["policies"]["p1"] == {
            "version": 4,
            "updated": True,
            "loss": 0.5,
            "store_seconds": STORE_SECONDS,
        }
        assert metrics[0]["counts"] == {"ok": 12}
        seconds = metrics[1]["seconds"]
        assert set(seconds) == {"step", "rollout", "train", "sync", "checkpoint", "store"}
        assert seconds["store"] == pytest.approx(STORE_SECONDS)
        assert around.json("summary.json")["store_share"] > 0
        tasks = Counter(task for line in metrics for task in line["tasks"])
        assert set(tasks.values()) <= {2, 3}  # 24 tasks out of 10 records

        evals = around.lines("evals")
        assert [line["step"] for line in evals] == [0, 2, 4]
        assert evals[0]["agents"]["p0"]["scored"] == 9
        asked = [r for r in around.requests if r.purpose == rollout_pb2.EVAL]
        seeds = {(r.id.step, r.id.index): r.seed for r in asked}
        assert all(seeds[0, index] == seeds[4, index] for index in range(3))

        episodes = around.lines("episodes")
        assert Counter(line["step"] for line in episodes) == dict.fromkeys(range(4), 5)
        assert {line["index"] for line in episodes} <= {0, 1, 2}

        summary = around.json("summary.json")
        assert (summary["job"], summary["steps"], summary["tokens"]) == ("small", 4, 4 * 144)
        assert summary["policies"]["p0"]["eval_after"] == 1.0
        progress = around.json("progress.json")
        assert (progress["step"], progress["steps"], progress["phase"]) == (4, 4, "Complete")

        kept = sorted(path.name for path in (around.settings.run_dir / "checkpoints").iterdir())
        assert kept == ["step-00000004"]
        manifest = around.json("checkpoints/step-00000004/manifest.json")
        assert manifest["step"] == 4
        assert manifest["policies"]["p0"]["version"] == 4
        assert manifest["policies"]["p0"]["files"][0]["path"] == "state.json"
        assert manifest["cursor"]["position"] == 24


@pytest.mark.parametrize(("policies", "slots"), [(3, 1), (3, 2), (2, 3)])
async def test_policies_take_turns_where_slots_are_few(
    tmp_path: Path, store_server: Server, policies: int, slots: int
) -> None:
    async with team(make_job(policies), tmp_path, store_server, slots=slots) as around:
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        binds = [trainer.binds for trainer in around.trainers]
        if slots >= policies:
            assert [len(each) for each in binds] == [1, 1, 0]
        else:
            for each in binds:
                assert all(a != b for a, b in itertools.pairwise(each))
            # A slot begins a step with the policy that it ended the last one with.
            own = sorted(len(set(each)) for each in binds)
            turns = sorted(len(each) for each in binds)
            assert turns == [n + (n - 1) * 4 for n in own]


async def test_several_workers_share_the_groups(tmp_path: Path, store_server: Server) -> None:
    async with team(make_job(), tmp_path, store_server, workers=3) as around:
        for worker in around.workers:
            worker.seconds = 0.05
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        assert [len(worker.requests) for worker in around.workers] == [8, 8, 8]


async def test_a_policy_that_is_not_trained_stays_at_version_0(
    tmp_path: Path, store_server: Server
) -> None:
    policies = [
        {"name": "p0", "model": {"uri": "random://llama?hidden=8"}},
        {
            "name": "judge",
            "model": {"uri": "random://llama?hidden=8"},
            "training": {"algorithm": "none"},
        },
        {
            "name": "api",
            "engine": {"kind": "openai", "openai": {"baseUrl": "http://localhost", "model": "m"}},
            "training": {"algorithm": "none"},
        },
    ]
    whole = make_job(1, steps=2).model_dump(by_alias=True)
    whole["spec"]["policies"] = policies
    changed = MARLJob.model_validate(whole)
    async with team(changed, tmp_path, store_server) as around:
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        last = {route.policy: route for route in around.requests[-1].routes}
        assert (last["p0"].version, last["judge"].version, last["api"].version) == (1, 0, 0)
        assert last["judge"].engines
        assert not last["api"].engines


async def test_a_job_that_was_complete_goes_on_to_more_steps_where_it_stood(
    tmp_path: Path, store_server: Server
) -> None:
    """They were raised before anybody saw the end of those that were wanted."""
    async with team(make_job(steps=2), tmp_path, store_server) as around:
        await around.run()
        around.job = make_job(steps=4)
        await around.run()
        around.assert_trained_as_if_nothing_had_happened()
        around.assert_every_task_was_trained_once()
