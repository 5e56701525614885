"""Kinds of teams, policies and places: each a small job through all real processes."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import redis

from .chat_server import ChatServer
from .running import Job

pytestmark = pytest.mark.e2e


def test_trained_frozen_and_external_policies_play_together(
    council: Future[Job], chat: ChatServer
) -> None:
    job = council.result()
    (line,) = job.lines()
    assert list(line["policies"]) == ["writers"]
    assert line["policies"]["writers"]["updated"]
    assert line["policies"]["writers"]["logprob_gap_mean"] < 1e-3
    versions = {name: part["version"] for name, part in job.summary()["policies"].items()}
    assert versions == {"writers": 1, "rival": 0, "api": 0}
    assert line["counts"]["ok"] == 16
    assert {name: score["turns"] for name, score in line["agents"].items()} == dict.fromkeys(
        ("ada", "ben", "rival", "judge"), 16
    )
    said = [turn for turn in job.lines("episodes.jsonl")[0]["turns"] if turn["agent"] == "judge"]
    assert [turn["text"] for turn in said] == [ChatServer.VERDICT]
    assert chat.keys == {"Bearer sesame"}
    assert len(chat.requests) == 17  # one was asked again
    request = chat.requests[-1]
    assert (request["path"], request["model"]) == ("/v1/chat/completions", "judge-1")
    assert request["max_tokens"] == 12
    assert request["messages"][-1]["role"] == "user"


def test_a_store_that_runs_elsewhere_is_used(council: Future[Job], store: str) -> None:
    job = council.result()
    assert not (job.run_dir / "logs" / "store.log").exists()
    with redis.Redis.from_url(store) as client:
        assert client.info("commandstats")["cmdstat_xadd"]["calls"] > 0
        assert client.dbsize() == 0
    assert store.split(":")[2].split("@", maxsplit=1)[0] not in job.logs()


def test_many_policies_share_a_slot_and_many_processes_a_policy(debate: Future[Job]) -> None:
    job = debate.result()
    assert [line["step"] for line in job.lines()] == [0, 1]
    for line in job.lines():
        assert set(line["policies"]) == {"ada", "ben", "cem"}
        assert all(part["updated"] for part in line["policies"].values())
        assert all(score["turns"] == 32 for score in line["agents"].values())
    assert {part["version"] for part in job.summary()["policies"].values()} == {2}
    trainer = (job.run_dir / "logs" / "trainer-0.log").read_text()
    for name in ("ada", "ben", "cem"):
        assert f"policy={name}" in trainer
        for replica in (0, 1):
            engine = (job.run_dir / "logs" / f"engine-{name}-{replica}.log").read_text()
            loads = [row for row in engine.splitlines() if "weights loaded" in row]
            assert any("version=2" in row for row in loads)
            assert all("via=tcp" in row for row in loads)
    assert (job.run_dir / "logs" / "rollout-worker-1.log").exists()


def test_rewards_that_fail_are_counted_and_left_out(chain: Future[Job]) -> None:
    job = chain.result()
    (line,) = job.lines()
    outcomes = {name: count for name, count in line["counts"].items() if count}
    expected = {"ok": 6, "reward-error": 6, "reward-timeout": 6, "unscorable": 6}
    assert outcomes == expected
    for score in line["agents"].values():
        assert (score["scored"], score["unscorable"]) == (6, 18)
        assert score["reward"] > 0
    assert all(part["updated"] for part in line["policies"].values())
    assert line["policies"]["planner"]["sequences"] == 6
    assert line["policies"]["doers"]["sequences"] == 12


def test_an_environment_of_the_user_pays_turn_by_turn(play: Future[Job]) -> None:
    job = play.result()
    (line,) = job.lines()
    assert line["counts"]["ok"] == 16
    assert line["agents"]["player"]["turns"] == 48
    assert line["policies"]["player"]["logprob_gap_mean"] < 1e-3
    turns = job.lines("episodes.jsonl")[0]["turns"]
    assert [turn["agent"] for turn in turns] == ["player"] * 3
    assert "say letters." in turns[0]["messages"][-1]["content"]
    assert turns[-1]["messages"][-1]["content"] == "1 left"
