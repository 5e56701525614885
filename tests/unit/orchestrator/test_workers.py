"""Whom groups are given to, and for how long somebody is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.workers import Workers
from flexmarl.runtime.errors import JobFailedError


class Playing:
    """A worker's stub."""

    async def RunGroup(
        self, request: rollout_pb2.RunGroupRequest, **_: Any
    ) -> rollout_pb2.GroupFinished:
        return rollout_pb2.GroupFinished(id=request.id)


async def test_a_group_waits_for_the_first_worker() -> None:
    stubs: dict[str, Any] = {}
    workers = Workers(stubs, Limits(resting=0.01))
    call = asyncio.ensure_future(workers.run(rollout_pb2.RunGroupRequest()))
    await asyncio.sleep(0.05)
    assert not call.done()
    stubs["w:1"] = Playing()
    assert (await call)[0] == "w:1"


class Failing:
    async def RunGroup(self, request: rollout_pb2.RunGroupRequest, **_: Any) -> None:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "no route")


async def test_an_address_that_left_is_forgotten() -> None:
    """On a cluster each pod has another, and whoever gets one again is another."""
    stubs: dict[str, Any] = {"w:1": Failing()}
    workers = Workers(stubs, Limits(resting=0.01))
    with pytest.raises(grpc.aio.AioRpcError):
        await workers.run(rollout_pb2.RunGroupRequest())
    assert workers.away() == ["worker at w:1: no route"]
    stubs["w:2"] = Playing()
    del stubs["w:1"]
    await workers.run(rollout_pb2.RunGroupRequest())
    del stubs["w:2"]
    stubs["w:1"] = Playing()
    assert workers.away() == []


async def test_a_job_without_any_worker_ends_in_words() -> None:
    workers = Workers({}, Limits(resting=0.01, unreachable=0.1))
    with pytest.raises(JobFailedError, match=r"no rollout worker for 0\.1 s"):
        await workers.run(rollout_pb2.RunGroupRequest())
