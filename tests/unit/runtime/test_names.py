"""Names that a resolver must not complete with the domains of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexmarl.runtime.names import domains, whole, with_whole_names
from flexmarl.runtime.settings import Discovery, Settings

POD = (
    "search ns.svc.example.local svc.example.local example.local corp.example\nnameserver 1.2.3.4\n"
)
SEARCHED = ["ns.svc.example.local", "svc.example.local", "example.local", "corp.example"]


@pytest.mark.parametrize(
    ("resolver", "found"),
    [(POD, SEARCHED), ("search a\nsearch b c", ["b", "c"]), ("nameserver 1", []), ("search", [])],
)
def test_the_domains_of_a_resolver_are_read(resolver: str, found: list[str]) -> None:
    assert domains(resolver) == found


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("engines.ns.svc:7070", "engines.ns.svc.example.local.:7070"),
        ("t-0.trainers.ns.svc:7070", "t-0.trainers.ns.svc.example.local.:7070"),
        ("10.0.0.1:7070", "10.0.0.1:7070"),
        ("[::1]:7070", "[::1]:7070"),
        ("localhost:7070", "localhost:7070"),
        ("unix:///run/x.svc", "unix:///run/x.svc"),
        ("", ""),
    ],
)
def test_a_name_of_the_cluster_is_made_whole(address: str, found: str) -> None:
    assert whole(address, SEARCHED) == found
    assert whole(address, ["corp.example"]) == address  # no cluster, or one that keeps it secret


def test_slots_are_known_by_the_names_that_trainers_have(tmp_path: Path) -> None:
    settings = Settings(
        job_file=tmp_path / "job.yaml",
        job_uid="uid",
        experience="experience.ns.svc:1",
        trainers=["t-0.ns.svc:1"],
        slot_policies={"t-0.ns.svc:1": ["solver"]},
        discovery=Discovery(
            workers="w.ns.svc:1", engines={"solver": "e.ns.svc:1"}, pools={"few": "p.ns.svc:1"}
        ),
    )
    found = with_whole_names(settings, POD)
    assert found.trainers == ["t-0.ns.svc.example.local.:1"]
    assert found.slot_policies == {"t-0.ns.svc.example.local.:1": ["solver"]}
    assert found.experience == "experience.ns.svc.example.local.:1"
    assert found.discovery == Discovery(
        workers="w.ns.svc.example.local.:1",
        engines={"solver": "e.ns.svc.example.local.:1"},
        pools={"few": "p.ns.svc.example.local.:1"},
    )
    trainer = settings.model_copy(update={"discovery": None, "trainers": []})
    found = with_whole_names(trainer, POD)
    assert (found.discovery, found.experience) == (None, "experience.ns.svc.example.local.:1")
    local = trainer.model_copy(update={"experience": "unix:///run/e.sock", "slot_policies": {}})
    assert with_whole_names(local, POD) == local
