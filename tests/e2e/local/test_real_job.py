"""`flexmarl run` with all real processes: deaths are survived, interruptions leave nothing."""

import json
import os
import signal
from pathlib import Path

import pytest

from .conftest import Supervised, wait_until

pytestmark = pytest.mark.e2e
SMALL = ("--set", "spec.batch.tasksPerStep=8", "--set", "spec.eval.everySteps=0")


@pytest.fixture
def quickstart(repo: Path) -> Path:
    return repo / "examples" / "quickstart.yaml"


def test_a_job_survives_the_death_of_each_of_its_processes(
    supervised: Supervised, quickstart: Path
) -> None:
    names = ["engine-verifier-0", "trainer-0", "rollout-worker-0", "weights", "experience"]
    names.append("orchestrator")
    steps = 10 * len(names)
    supervised.start_real(quickstart, *SMALL, "--set", f"spec.steps={steps}")
    for number, name in enumerate(names):
        wait_until(lambda least=3 + 8 * number: supervised.steps() >= least, 120)  # type: ignore[misc]
        os.kill(supervised.pid_of(name), signal.SIGKILL)
    code, output = supervised.finish(300)
    assert code == 0, output
    for name in names:
        assert f"{name} ended (killed by SIGKILL)" in output
    assert supervised.progress()["phase"] == "Complete"
    lines = (supervised.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(steps))
    assert supervised.left() == []


def test_interrupted_then_resumed_it_goes_on_from_its_checkpoint(
    supervised: Supervised, quickstart: Path
) -> None:
    options = (*SMALL, "--set", "spec.checkpoint.everySteps=2")
    run = supervised.start_real(quickstart, *options, "--set", "spec.steps=1000")
    wait_until(lambda: supervised.steps() >= 5, 120)
    run.send_signal(signal.SIGINT)
    code, output = supervised.finish()
    assert code == 130, output
    assert supervised.left() == []
    done = supervised.steps()
    run = supervised.resume_real(quickstart, *options, "--set", f"spec.steps={done + 2}")
    code, output = supervised.finish(120)
    assert code == 0, output
    assert "resuming from" in output
    lines = (supervised.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(done + 2))
    assert supervised.left() == []


def test_killed_in_the_middle_of_training_nothing_is_left(
    supervised: Supervised, quickstart: Path
) -> None:
    run = supervised.start_real(quickstart, *SMALL, "--set", "spec.steps=1000")
    wait_until(lambda: supervised.steps() >= 2, 120)
    run.kill()
    supervised.finish()
    wait_until(lambda: supervised.left() == [], 10)
