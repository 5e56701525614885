"""A user's part of a pod template over ours."""

from __future__ import annotations

from typing import Any

from tests.unit.controller.seen import INSTALLATION, document, subject

from flexmarl.controller.names import Manifest
from flexmarl.controller.render import render


def worker(**spec: Any) -> Manifest:
    """The workers' pod with this laid over it."""
    plain = document(roles={"worker": {"template": {"spec": spec}}})
    made = render(subject(plain), INSTALLATION, {})
    (found,) = [
        one["spec"]["template"]["spec"]
        for one in made
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "team-worker")
    ]
    return dict(found)


def main(pod: Manifest) -> Manifest:
    (found,) = pod["containers"]
    return dict(found)


def test_a_volume_of_the_same_name_takes_the_place_of_ours() -> None:
    own = {"name": "cache", "hostPath": {"path": "/models"}}
    volumes = worker(volumes=[own, {"name": "more", "emptyDir": {}}])["volumes"]
    assert [one for one in volumes if one["name"] in ("cache", "more")] == [
        own,
        {"name": "more", "emptyDir": {}},
    ]
    assert all(len(one) == 2 for one in volumes), "each has one source"


def test_a_variable_of_the_same_name_takes_the_place_of_ours() -> None:
    own = {"name": "FLEXMARL_TOKEN", "value": "mine"}
    env = main(worker(containers=[{"name": "main", "env": [own]}]))["env"]
    assert [one for one in env if one["name"] == "FLEXMARL_TOKEN"] == [own]


def test_mounts_of_one_volume_at_several_paths_stand_beside_each_other() -> None:
    before = main(worker())["volumeMounts"]
    own = {"name": "cache", "mountPath": "/models", "subPath": "models"}
    changed = {"name": "cache", "mountPath": "/tmp"}
    mounts = main(worker(containers=[{"name": "main", "volumeMounts": [own, changed]}]))
    expected = [changed if one["mountPath"] == "/tmp" else one for one in before]
    assert mounts["volumeMounts"] == [*expected, own]
