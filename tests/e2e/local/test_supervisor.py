"""The supervisor over fake processes: restarts, failures, and nothing left whatever happens."""

import json
import os
import random
import signal
import time

import pytest
import redis
from tests.e2e.conftest import Valkey

from flexmarl.experience.keys import Keys, job_tag

from .conftest import EVERYONE, SECONDS, Supervised, wait_until

pytestmark = pytest.mark.e2e


def test_a_job_is_complete_when_its_orchestrator_says_so(supervised: Supervised) -> None:
    supervised.tell("orchestrator", "exit 0")
    supervised.start()
    code, output = supervised.finish()
    assert (code, output.splitlines()[-1]) == (0, "complete")
    assert supervised.left() == []
    assert not (supervised.run_dir / ".lock").exists()


def test_all_are_started_once_and_stop_in_drain_order(supervised: Supervised) -> None:
    run = supervised.start()
    supervised.wait_for_all()
    run.send_signal(signal.SIGINT)
    code, output = supervised.finish()
    assert (code, output.splitlines()[-1]) == (130, "interrupted")
    assert [len(supervised.started(name)) for name in EVERYONE] == [1] * len(EVERYONE)
    stops = (supervised.run_dir / "stops").read_text().split()
    assert sorted(stops[2:5]) == ["engine-heavy-0", "engine-solver-0", "trainer-0"]
    assert [*stops[:2], *stops[5:]] == [
        "orchestrator",
        "rollout-worker-0",
        "experience",
        "weights",
        "store",
    ]
    assert supervised.left() == []


def test_a_process_that_crashes_is_restarted_then_the_job_fails_with_its_last_words(
    supervised: Supervised,
) -> None:
    supervised.tell("rollout-worker-0", "raise")
    supervised.start()
    code, output = supervised.finish()
    assert code == 0
    reason = "RuntimeError: rollout-worker-0 is broken"
    assert f"ended (exit code 1): {reason}; restart 1 of 2 in 0.05 s" in output
    assert "restart 2 of 2 in 0.1 s" in output
    failure = output[output.index("failed: ") :]
    assert "rollout-worker-0 ended (exit code 1) after 2 restarts:" in failure
    assert "rollout-worker-0 says hello" in failure
    assert failure.strip().endswith(reason)
    assert len(supervised.started("rollout-worker-0")) == 3
    progress = json.loads((supervised.run_dir / "progress.json").read_text())
    assert progress["phase"] == "Failed"
    assert progress["message"].startswith("rollout-worker-0 ended")
    assert supervised.left() == []


def test_exit_code_3_is_final_and_its_last_line_the_reason(supervised: Supervised) -> None:
    supervised.tell("orchestrator", "exit 3")
    supervised.start()
    _, output = supervised.finish()
    assert output.splitlines()[-1] == "failed: orchestrator: orchestrator has enough"
    assert len(supervised.started("orchestrator")) == 1
    assert supervised.left() == []


def test_one_that_ends_well_without_being_asked_is_restarted_too(supervised: Supervised) -> None:
    supervised.tell("rollout-worker-0", "exit 0")
    supervised.start()
    _, output = supervised.finish()
    assert "failed: rollout-worker-0 ended (exit code 0) after 2 restarts" in output


@pytest.mark.parametrize("name", ["rollout-worker-0", "engine-heavy-0"])
def test_a_killed_process_comes_back_with_what_it_had_started_gone(
    supervised: Supervised, name: str
) -> None:
    supervised.tell(name, "spawn")
    run = supervised.start()
    supervised.wait_for_all()
    os.kill(supervised.started(name)[0], signal.SIGKILL)
    wait_until(lambda: len(supervised.started(name)) == 2)
    assert f"{name} ended (killed by SIGKILL)" in supervised.log()
    run.terminate()
    assert supervised.finish()[0] == 130
    assert supervised.left() == []


def test_heavy_processes_come_from_the_warm_parent_also_after_it_was_killed(
    supervised: Supervised,
) -> None:
    run = supervised.start("json,heavy_imports")
    supervised.wait_for_all()
    lines = (supervised.run_dir / "starts").read_text().splitlines()
    assert {line.split()[0] for line in lines if line.split()[2] == "True"} == {
        "engine-heavy-0",
        "trainer-0",
    }
    engine, trainer = supervised.started("engine-heavy-0")[0], supervised.started("trainer-0")[0]
    os.kill(supervised.warm(), signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: len(supervised.started("engine-heavy-0")) == 2)
    os.kill(trainer, 0)  # it outlived its parent
    last = (supervised.run_dir / "starts").read_text().splitlines()[-1].split()
    assert (last[0], last[2]) == ("engine-heavy-0", "True")
    run.terminate()
    assert supervised.finish()[0] == 130
    assert supervised.left() == []


@pytest.mark.parametrize("imports", ["no_such_module", "starts_a_thread"])
def test_without_a_warm_parent_processes_start_by_themselves(
    supervised: Supervised, imports: str
) -> None:
    run = supervised.start(imports)
    supervised.wait_for_all()
    assert "trainer-0 starts slowly, the warm parent failed: " in supervised.log()
    run.terminate()
    assert supervised.finish()[0] == 130
    assert supervised.left() == []


def test_interrupted_at_any_moment_of_the_start_nothing_is_left(supervised: Supervised) -> None:
    chance = random.Random(3)
    for _ in range(8):
        run = supervised.start()
        wait_until((supervised.run_dir / ".lock").exists)
        time.sleep(chance.random() * 0.5)
        run.send_signal(chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
        code, output = supervised.finish()
        assert (code, output.splitlines()[-1]) == (130, "interrupted"), output
        assert supervised.left() == []
        assert not (supervised.run_dir / ".lock").exists()


def test_kill_9_of_the_supervisor_leaves_nothing(supervised: Supervised) -> None:
    supervised.tell("engine-heavy-0", "spawn")
    run = supervised.start()
    supervised.wait_for_all()
    run.kill()
    supervised.finish()
    # All but what left its session by itself, which only a living supervisor finds.
    sleepers = {pid for pid in supervised.processes() if supervised.is_session_of_its_own(pid)}
    wait_until(lambda: {path for path in supervised.left() if not path.isdigit()} == set())
    wait_until(lambda: len(supervised.processes()) <= 1)
    assert set(supervised.processes()) <= sleepers


def test_who_does_not_stop_when_asked_is_killed_at_once_by_a_second_signal(
    supervised: Supervised,
) -> None:
    for name in EVERYONE:
        supervised.tell(name, "deaf")
    run = supervised.start()
    supervised.wait_for_all()
    run.send_signal(signal.SIGINT)
    wait_until(lambda: not (supervised.run_dir / "stops").exists())
    time.sleep(0.2)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert supervised.finish(25)[0] == 130  # six stages of waiting would last longer
    assert supervised.left() == []


def test_a_second_run_of_the_same_name_is_refused(supervised: Supervised) -> None:
    run = supervised.start()
    supervised.wait_for_all()
    second = supervised.start()
    output, _ = second.communicate(timeout=SECONDS)
    assert f"another `flexmarl run` (process {run.pid}) works on" in output
    run.terminate()
    assert run.communicate(timeout=SECONDS)[0].splitlines()[-1] == "interrupted"
    assert supervised.left() == []


def test_a_signal_after_the_orchestrators_last_word_finds_the_job_complete(
    supervised: Supervised,
) -> None:
    supervised.tell("orchestrator", "complete")
    run = supervised.start()
    supervised.wait_for_all()
    run.send_signal(signal.SIGINT)
    code, output = supervised.finish()
    assert (code, output.splitlines()[-1]) == (0, "complete")
    assert supervised.left() == []


def test_another_process_that_gives_up_after_the_last_word_changes_nothing(
    supervised: Supervised,
) -> None:
    supervised.tell("orchestrator", "complete")
    supervised.start()
    supervised.wait_for_all()
    supervised.tell("rollout-worker-0", "exit 3")
    os.kill(supervised.started("rollout-worker-0")[0], signal.SIGKILL)
    code, output = supervised.finish()
    assert (code, output.splitlines()[-1]) == (0, "complete")


def state_of(uid: str) -> str:
    return Keys(job_tag("default", "team", uid)).state


@pytest.mark.parametrize("end", ["exit 0", "exit 3", "signal"])
def test_no_key_is_left_in_a_store_of_the_users_own_and_no_other_is_touched(
    supervised: Supervised, own_store: Valkey, end: str
) -> None:
    foreign = {"plain", "{l0}:x", "{default/team/1}:stream:solver", "no:braces", "{}:x"}
    with redis.Redis.from_url(own_store.url, decode_responses=True) as client:
        client.mset(dict.fromkeys(foreign, "x"))
        (supervised.run_dir / "submissions").write_text("l00\n")  # of a supervisor that was killed
        client.hset(state_of("l00"), "step", "1")
        supervised.use_store(own_store.url)
        if end != "signal":
            supervised.tell("orchestrator", end)
        run = supervised.start()
        if end == "signal":
            supervised.wait_for_all()
            uid = (supervised.run_dir / "submissions").read_text().split()[-1]
            assert client.hget(state_of(uid), "orchestrator") == "x"
            run.send_signal(signal.SIGINT)
        code, output = supervised.finish()
        assert code == (130 if end == "signal" else 0), output
        assert "warning" not in output
        assert set(client.scan_iter(count=1000)) == foreign
    assert supervised.left() == []


def test_a_store_that_is_gone_is_a_warning_without_its_password(
    supervised: Supervised, own_store: Valkey
) -> None:
    supervised.use_store(own_store.url)
    run = supervised.start()
    supervised.wait_for_all()
    own_store.process.kill()
    run.send_signal(signal.SIGINT)
    code, output = supervised.finish()
    assert (code, output.splitlines()[-1]) == (130, "interrupted")
    (warning,) = [line for line in output.splitlines() if "warning" in line]
    assert "may be left in the store: the store does not answer" in warning
    assert own_store.url.split(":")[2].split("@")[0] not in output


def test_a_store_that_hangs_is_not_waited_for_in_a_hurry(
    supervised: Supervised, own_store: Valkey
) -> None:
    supervised.use_store(own_store.url)
    run = supervised.start()
    supervised.wait_for_all()
    own_store.process.send_signal(signal.SIGSTOP)
    try:
        run.send_signal(signal.SIGINT)
        wait_until(lambda: not supervised.started_still_running())
        run.send_signal(signal.SIGINT)
        code, output = supervised.finish()
    finally:
        own_store.process.send_signal(signal.SIGCONT)
    assert (code, output.splitlines()[-1]) == (130, "interrupted")
    assert "may be left in the store: there was no time" in output
