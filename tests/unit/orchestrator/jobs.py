"""A small job, its parts changed by keyword."""

from typing import Any

from flexmarl.contracts.job import MARLJob


def make_job(policies: int = 2, **spec: Any) -> MARLJob:
    """Policies and agents are called p0, p1, ...; no process looks at the model."""
    names = [f"p{number}" for number in range(policies)]
    return MARLJob.model_validate(
        {
            "metadata": {"name": "small"},
            "spec": {
                "policies": [
                    {"name": name, "model": {"uri": "random://llama?hidden=8"}} for name in names
                ],
                "agents": [{"name": name, "policy": name} for name in names],
                "workflow": {"name": "solver-verifier"},
                "data": {"uri": "file://tasks.jsonl"},
                "steps": 4,
                "batch": {"tasksPerStep": 6, "groupSize": 2},
                **spec,
            },
        }
    )
