"""How soon a release has a job's pods, as `flexmarl bench operator` measures it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .kube import slack
from .stage import Stage
from .user import flexmarl


@pytest.mark.full
@pytest.mark.alone
def test_a_job_has_its_first_pod_and_all_of_them_ready_within_seconds(stage: Stage) -> None:
    arguments = ("bench", "operator", "-n", stage.namespace(), "--rounds", "3", "--json")
    code, said = flexmarl(Path("/"), *arguments)
    assert code == 0, said
    measures = json.JSONDecoder().raw_decode(said)[0]["measures"]
    print([(each["name"], each["value"], each["spread"]) for each in measures])
    assert [each for each in measures if each["value"] > each["goal"] * slack()] == []
