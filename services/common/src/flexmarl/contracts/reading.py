"""Read a MARLJob from YAML."""

from pathlib import Path

import yaml

from flexmarl.contracts.job import MARLJob


def load_job(path: Path) -> MARLJob:
    """The job that `path` describes; pydantic.ValidationError when it is wrong."""
    return MARLJob.model_validate(yaml.safe_load(path.read_text()))
