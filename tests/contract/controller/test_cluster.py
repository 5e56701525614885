"""What the API server answers, as the controller reads it."""

from __future__ import annotations

from functools import partial

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.test_looks import job

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.cache import WATCHED
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import JOB_LABEL, Manifest


def short(manifest: Manifest) -> Manifest:
    """What is read of metadata alone."""
    whole = manifest["metadata"]
    found = {name: whole[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    marks = {name: one for name, one in whole.get("labels", {}).items() if name == JOB_LABEL}
    return found | {"generation": whole.get("generation", 0), "labels": marks}


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_where_there_is_nothing_nothing_is_listed(world: World, metadata_only: bool) -> None:
    found = await world.cluster.listed("Job", world.namespace, metadata_only=metadata_only)
    assert found == []


async def test_of_metadata_alone_is_read_what_is_read_of_it_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexmarl.controller.cluster.PAGE", 2)
    key = await world.submit(job())
    await world.look(key)
    for kind in (*WATCHED, *UNWATCHED):
        which = partial(world.cluster.listed, kind, world.namespace)
        labels = "" if kind == "MARLJob" else JOB_LABEL
        while True:  # others write what becomes of it
            whole = await which(labels=labels)
            alone = await which(labels=labels, metadata_only=True)
            if whole == await which(labels=labels):
                break
        assert whole or kind == "Pod"
        assert [(one["kind"], one["metadata"]) for one in alone] == [
            (one["kind"], short(one)) for one in whole
        ]


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy"])
async def test_what_was_applied_is_told_in_short(world: World, kind: str) -> None:
    key = await world.submit(job())
    await world.look(key)
    (one, *_) = await world.cluster.listed(kind, world.namespace)
    labels = {**one["metadata"]["labels"], "new": "label"}
    about = {"name": one["metadata"]["name"], "namespace": world.namespace, "labels": labels}
    said = await world.cluster.apply({**one, "metadata": about})
    now = await world.cluster.get(kind, world.namespace, one["metadata"]["name"])
    assert now is not None
    assert said["metadata"] == short(now)


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_a_refusal_is_told_in_the_api_servers_words(
    world: World, metadata_only: bool
) -> None:
    with pytest.raises(RefusedError, match="unable to parse requirement") as refused:
        await world.cluster.listed(
            "Job", world.namespace, labels="a b", metadata_only=metadata_only
        )
    assert refused.value.status == 400
