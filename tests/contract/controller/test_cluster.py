"""What the API server answers, as the controller reads it."""

from __future__ import annotations

import pytest
from tests.contract.controller.conftest import World


@pytest.mark.parametrize("metadata_only", [True, False])
async def test_where_there_is_nothing_nothing_is_listed(world: World, metadata_only: bool) -> None:
    found = await world.cluster.listed("Job", world.namespace, metadata_only=metadata_only)
    assert found == []
