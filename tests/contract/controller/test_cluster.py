"""What the API server answers, as the controller reads it."""

from __future__ import annotations

import pytest
from tests.contract.controller.conftest import World
from tests.contract.controller.test_looks import job

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.cache import WATCHED
from flexmarl.controller.cluster import RefusedError
from flexmarl.controller.names import JOB_LABEL

SAME = ("name", "namespace", "uid", "resourceVersion", "labels")


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
        labels = "" if kind == "MARLJob" else JOB_LABEL
        whole, short = [
            await world.cluster.listed(
                kind, world.namespace, labels=labels, metadata_only=metadata_only
            )
            for metadata_only in (False, True)
        ]
        wanted = [
            (one["kind"], {name: one["metadata"].get(name, {}) for name in SAME}) for one in whole
        ]
        assert wanted or kind == "Pod"
        assert [(one["kind"], one["metadata"]) for one in short] == wanted


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_a_refusal_is_told_in_the_api_servers_words(
    world: World, metadata_only: bool
) -> None:
    with pytest.raises(RefusedError, match="unable to parse requirement") as refused:
        await world.cluster.listed(
            "Job", world.namespace, labels="a b", metadata_only=metadata_only
        )
    assert refused.value.status == 400
