"""The quickstart, submitted from the folder where it lies, learns as on one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stage import Stage
from .user import asks

SECONDS = 1800.0
"""It computes for some three minutes on two cores that nobody else uses."""


@pytest.mark.full
@pytest.mark.long
def test_the_quickstart_learns_as_on_one_machine(stage: Stage) -> None:
    job = stage.job("quickstart")
    examples = Path(__file__).resolve().parents[3] / "examples"
    asks(job, "apply", "quickstart.yaml", folder=examples)
    job.uid = job.manifest()["metadata"]["uid"]
    job.completes(SECONDS)
    policies = job.files["summary"]["policies"]
    print({name: (each["eval_before"], each["eval_after"]) for name, each in policies.items()})
    assert policies["solver"]["eval_after"] > 0.85
    assert policies["verifier"]["eval_after"] > 0.65
    for each in policies.values():
        assert each["eval_after"] > each["eval_before"] + 0.1
