"""The quickstart, submitted from the folder where it lies, learns as on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .stage import Stage

SECONDS = 1800.0
"""It computes for some three minutes on two cores that nobody else uses."""


@pytest.mark.full
@pytest.mark.beside
def test_the_quickstart_learns_as_on_one_machine(stage: Stage) -> None:
    job = stage.job("quickstart")
    examples = Path(__file__).resolve().parents[3] / "examples"
    apply = ["apply", "quickstart.yaml", "-n", job.namespace]
    subprocess.run(
        [sys.executable, "-m", "flexmarl.cli", *apply], cwd=examples, check=True, timeout=120
    )
    job.uid = job.manifest()["metadata"]["uid"]
    job.completes(SECONDS)
    policies = job.files["summary"]["policies"]
    print({name: (each["eval_before"], each["eval_after"]) for name, each in policies.items()})
    assert policies["solver"]["eval_after"] > 0.85
    assert policies["verifier"]["eval_after"] > 0.65
    for each in policies.values():
        assert each["eval_after"] > each["eval_before"] + 0.1
    stage.done_with(job.namespace)
