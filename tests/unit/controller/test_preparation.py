"""First containers: what they are told."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
from tests.unit.controller.seen import INSTALLATION, document, subject

from flexmarl.contracts import rules
from flexmarl.contracts.preparation import (
    CONTAINER,
    PACKED,
    Preparation,
)
from flexmarl.controller.names import Manifest
from flexmarl.controller.render import WORKLOADS, render


def fetching() -> dict[str, Any]:
    """A job that fetches everything there is to fetch."""
    plain = document(
        policies=2,
        data={"uri": "s3://bucket/tasks.jsonl", "secretRef": {"name": "data-keys"}},
        eval={"data": {"uri": "pvc://held-out/tasks.jsonl"}},
        workflow={"entrypoint": "team:Team"},
        code={"git": {"url": "https://host/team.git", "ref": "v1", "secretRef": {"name": "git"}}},
        cache={"claim": "models"},
    )
    first, second = plain["spec"]["policies"]
    first |= {
        "model": {"uri": "hf://org/a@v1", "secretRef": {"name": "hub"}},
        "engine": {"kind": "transformers"},
    }
    second |= {"model": {"uri": "pvc://llm.base/b"}, "tokenizer": "hf://org/t$(X)"}
    plain["metadata"]["annotations"] = {PACKED: "files.tar.gz"}
    plain["spec"]["code"]["configMap"] = "team-files-1"
    assert [one for one in rules.check(plain) if not one.warning] == []
    return plain


def pods(plain: dict[str, Any]) -> dict[str, Manifest]:
    """Pod specs by workload."""
    found = {}
    for manifest in render(subject(plain), INSTALLATION, {}):
        kubernetes_validate.validate(manifest, "1.29", strict=True)
        if manifest["kind"] in WORKLOADS:
            found[manifest["metadata"]["name"]] = manifest["spec"]["template"]["spec"]
    return found


def first(pod: Manifest) -> Manifest:
    found: Manifest = pod["initContainers"][0]
    assert found["name"] == CONTAINER
    return found


def plan(pod: Manifest) -> Preparation:
    argument, message = first(pod)["args"]
    assert first(pod)["command"] == ["python3", "-P", "-m", "flexmarl.preflight"]
    assert message == "--message=/dev/termination-log"
    return Preparation.read(argument.replace("$$", "$"))


def sources(pod: Manifest) -> list[tuple[str, str, str]]:
    return [(one.uri, one.part, one.variables) for one in plan(pod).sources]


def test_each_pod_fetches_what_its_process_reads() -> None:
    found = pods(fetching())
    assert {name: sources(pod) for name, pod in found.items()} == {
        "team-experience": [],
        "team-engine-policy-0": [("hf://org/a@v1", "model", "SECRET0_")],
        "team-engine-policy-1": [("hf://org/t$(X)", "tokenizer", "")],
        "team-trainer": [
            ("hf://org/a@v1", "model", "SECRET0_"),
            ("hf://org/t$(X)", "tokenizer", ""),
        ],
        "team-worker": [
            ("hf://org/a@v1", "tokenizer", "SECRET0_"),
            ("hf://org/t$(X)", "tokenizer", ""),
        ],
        "team-orchestrator": [("s3://bucket/tasks.jsonl", "all", "SECRET0_")],
    }
    code = plan(found["team-worker"]).code
    assert code is not None
    assert (code.uri, code.variables) == ("git+https://host/team.git@v1", "SECRET1_")
    assert [name for name, pod in found.items() if plan(pod).code] == ["team-worker"]


def test_secrets_are_in_the_first_container_alone() -> None:
    for name, pod in pods(fetching()).items():
        for container in (*pod["initContainers"][1:], *pod["containers"]):
            assert "envFrom" not in container, name
    lent = first(pods(fetching())["team-worker"])["envFrom"]
    assert lent == [
        {"prefix": "SECRET0_", "secretRef": {"name": "hub"}},
        {"prefix": "SECRET1_", "secretRef": {"name": "git"}},
    ]


def mounts(container: Manifest) -> dict[str, bool]:
    """Path -> whether it can be written."""
    return {one["mountPath"]: not one.get("readOnly") for one in container["volumeMounts"]}


def test_claims_are_mounted_where_they_are_read_and_never_written() -> None:
    found = pods(fetching())
    for name, claim in {
        "team-trainer": "llm.base",
        "team-orchestrator": "held-out",
    }.items():
        pod = found[name]
        for container in (first(pod), pod["containers"][0]):
            assert mounts(container)[f"/claims/{claim}"] is False
        (volume,) = [one for one in pod["volumes"] if one["name"] == "claim-0"]
        assert volume["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}
    assert "/claims/held-out" not in mounts(found["team-trainer"]["containers"][0])


def test_the_cache_is_a_claim_where_the_job_names_one() -> None:
    for plain, volume in (
        (fetching(), {"persistentVolumeClaim": {"claimName": "models"}}),
        (document(), {"emptyDir": {}}),
    ):
        for pod in pods(plain).values():
            (cache,) = [one for one in pod["volumes"] if one["name"] == "cache"]
            assert cache == {"name": "cache", **volume}


def test_packed_files_are_laid_out_first_and_then_only_read() -> None:
    for name, pod in pods(fetching()).items():
        assert mounts(first(pod))["/flexmarl/files"] is True, name
        assert mounts(first(pod))["/flexmarl/packed"] is False
        assert mounts(pod["containers"][0])["/flexmarl/files"] is False
        assert plan(pod).archive == "files.tar.gz"
    plain = fetching()
    del plain["metadata"]["annotations"]
    found = pods(plain)
    assert plan(found["team-worker"]).files == "/flexmarl/packed"  # beside the repository
    assert plan(found["team-orchestrator"]).files == ""
    assert {"name": "files", "configMap": {"name": "team-files-1"}} in found["team-orchestrator"][
        "volumes"
    ]


def test_a_job_file_of_a_repository_counts_from_its_root() -> None:
    plain = fetching()
    del plain["metadata"]["annotations"], plain["spec"]["code"]["configMap"]
    found = pods(plain)
    folders = {
        name: variable["value"]
        for name, pod in found.items()
        for variable in pod["containers"][0]["env"]
        if variable["name"] == "FLEXMARL_BASE_DIR"
    }
    assert folders.pop("team-worker") == "/flexmarl/files"
    assert set(folders.values()) == {"/flexmarl/job"}


def test_only_who_asks_the_store_checks_it_and_gets_its_url() -> None:
    found = pods(document())
    experience = first(found["team-experience"])
    assert plan(found["team-experience"]).store
    (url,) = experience["env"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "team-job", "key": "store-url"}
    del found["team-experience"]
    assert not any(plan(pod).store or "env" in first(pod) for pod in found.values())
    assert {name for name, pod in found.items() if plan(pod).experience} == {
        "team-orchestrator",
        "team-trainer",
        "team-worker",
    }


def test_trainers_tell_what_their_shared_memory_has_to_hold() -> None:
    told = plan(pods(document())["team-trainer"])
    assert told.together  # one slot, two policies
    assert [one.policy for one in told.states] == ["policy-0", "policy-1"]
    assert all(one.parameters > 1000 and one.parameter_bytes == 12 for one in told.states)
    apart = document(roles={"trainer": {"replicas": 2}})
    assert not plan(pods(apart)["team-trainer"]).together
