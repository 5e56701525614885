"""The quickstart with its real engines: deaths are survived, an interruption leaves nothing."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from .conftest import Supervised, wait_until

pytestmark = pytest.mark.e2e
VICTIMS = ("engine-verifier-0", "trainer-0", "rollout-worker-0", "orchestrator")


def reached(run: Supervised, steps: int) -> bool:
    return run.steps() >= steps


def test_the_quickstart_survives_deaths_and_goes_on_after_ctrl_c(
    supervised: Supervised, repo: Path
) -> None:
    small = {
        "batch.tasksPerStep": 8,
        "eval.everySteps": 0,
        "eval.tasks": 8,
        "checkpoint.everySteps": 2,
    }
    options = [part for key, value in small.items() for part in ("--set", f"spec.{key}={value}")]
    quickstart = repo / "examples" / "quickstart.yaml"
    run = supervised.start_real(quickstart, *options, "--set", "spec.steps=1000")
    wait_until(partial(reached, supervised, 3))
    for name in VICTIMS:
        os.kill(supervised.pid_of(name), signal.SIGKILL)
        wait_until(partial(reached, supervised, supervised.steps() + 3))
    run.send_signal(signal.SIGINT)
    code, output = supervised.finish()
    assert code == 130, output
    for name in VICTIMS:
        assert f"{name} ended (killed by SIGKILL)" in output
    assert supervised.left() == []
    done = supervised.steps()
    supervised.resume_real(quickstart, *options, "--set", f"spec.steps={done + 2}")
    code, output = supervised.finish()
    assert code == 0, output
    assert "resuming from" in output
    assert supervised.progress()["phase"] == "Complete"
    lines = (supervised.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(done + 2))
    assert supervised.left() == []
