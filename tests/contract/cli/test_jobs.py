"""Jobs applied, looked at, suspended and resumed by `flexmarl`, and what a cluster refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.contract.cli.conftest import Terminal
from tests.contract.controller.bad_jobs import sound
from tests.contract.controller.conftest import World

from flexmarl.controller.cache import Key

TASKS = '{"question": "1 + 1", "answer": "2"}\n' * 20


@pytest.fixture
def written(flexmarl: Terminal) -> Path:
    """A job with a file beside it."""
    job = sound()
    del job["metadata"]["namespace"]
    job["spec"] |= {"data": {"uri": "file://tasks.jsonl"}, "store": {"url": "redis://x.invalid:1"}}
    (flexmarl.folder / "tasks.jsonl").write_text(TASKS)
    path = flexmarl.folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


async def test_a_job_is_created_with_its_files_and_changed_only_where_it_differs(
    world: World, flexmarl: Terminal, written: Path
) -> None:
    said = await flexmarl("apply", "job.yaml")
    assert said.code == 0, said
    assert f"marljob tiny in namespace {world.namespace}: created" in said.out
    job = await world.cluster.call("GET", f"{world.path}/tiny")
    name = job["spec"]["code"]["configMap"]
    at = f"/api/v1/namespaces/{world.namespace}/configmaps/{name}"
    files = await world.cluster.call("GET", at)
    assert set(files["binaryData"]) == {"tasks.jsonl"}
    assert files["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert "tiny in namespace" in (again := await flexmarl("apply", "job.yaml")).out
    assert again.out.splitlines()[-2].endswith("unchanged")
    assert ": changed" in (await flexmarl("apply", "job.yaml", "--set", "spec.steps=3")).out


async def test_what_only_one_machine_makes_something_of_is_told(
    world: World, flexmarl: Terminal, written: Path
) -> None:
    change = ("--set", "spec.roles.weights.restartPolicy.max=1")
    said = await flexmarl("apply", "job.yaml", *change)
    assert (said.code, "on a cluster without a meaning: spec.roles.weights" in said.err) == (
        0,
        True,
    )
    change = ("--set", "spec.checkpoint.uri=file://checkpoints")
    said = await flexmarl("apply", "job.yaml", "--set", "metadata.name=other", *change)
    assert said.code == 2
    assert "checkpoints would be lost with their pod" in said.err


async def test_what_a_cluster_refuses_is_told_in_words(
    world: World, flexmarl: Terminal, written: Path
) -> None:
    said = await flexmarl("status", "nobody")
    assert (said.code, 'no MARLJob "nobody"' in said.err) == (1, True)
    assert (await flexmarl("apply", "job.yaml")).code == 0
    said = await flexmarl("apply", "job.yaml", "--set", "spec.seed=7")
    assert said.code == 2
    assert "spec.seed" in said.err
    assert "cannot be changed" in said.err
    await world.change(f"{world.path}/tiny", {"spec": {"steps": 9}})
    change = ("apply", "job.yaml", "--set", "spec.steps=10")
    said = await flexmarl(*change)
    assert (said.code, "--force" in said.err) == (2, True), said
    assert (await flexmarl(*change, "--force")).code == 0
    flexmarl.namespace += "-none"
    said = await flexmarl("apply", "job.yaml")
    assert (said.code, "kubectl create namespace" in said.err) == (2, True), said


async def test_a_job_is_suspended_and_resumed_and_says_each_sentence_once(
    world: World, flexmarl: Terminal, written: Path
) -> None:
    assert (await flexmarl("apply", "job.yaml")).code == 0
    assert "is FlexMARL's running?" in (await flexmarl("status", "tiny")).out
    key = Key(world.namespace, "tiny")
    await world.look(key)
    said = await flexmarl("status", "tiny")
    assert f"tiny   {world.namespace}   Starting   step 0/2" in said.out
    assert "not suspended" in (await flexmarl("resume", "tiny")).err
    assert (await flexmarl("suspend", "tiny")).code == 0
    assert "suspended already" in (await flexmarl("suspend", "tiny")).err
    status = await world.until(key, "Suspended")
    said = await flexmarl("status", "tiny")
    assert said.out.count(status["message"]) == 1
    told = json.loads((await flexmarl("status", "tiny", "--json")).out)
    assert (told["name"], told["phase"]) == ("tiny", "Suspended")
    assert (await flexmarl("resume", "tiny")).code == 0
    assert (await world.look(key))["phase"] == "Starting"
