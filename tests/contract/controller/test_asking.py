"""Orchestrators are asked over real connections, which end at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flexmarl.contracts.v1 import orchestrator_pb2 as pb
from flexmarl.contracts.v1 import orchestrator_pb2_grpc
from flexmarl.controller import asking
from flexmarl.controller.asking import Orchestrators, Unanswered
from flexmarl.controller.observed import Progress
from flexmarl.runtime.grpc import serving

HOST = "127.0.0.1"


class Slow(orchestrator_pb2_grpc.OrchestratorServicer):
    """Answers once it may."""

    def __init__(self) -> None:
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressResponse:
        self.asked.set()
        await self.may.wait()
        return pb.ProgressResponse(phase="Training", step=3)

    async def Save(self, request: pb.SaveRequest, context: Any) -> pb.SaveResponse:
        self.asked.set()
        await self.may.wait()
        return pb.SaveResponse()


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    servicer = Slow()

    def register(server: Any) -> None:
        orchestrator_pb2_grpc.add_OrchestratorServicer_to_server(servicer, server)

    async with serving(register, f"{HOST}:0", token="secret", drain_seconds=0) as address:
        monkeypatch.setattr(asking, "PORT", int(address.rpartition(":")[2]))
        yield servicer
        servicer.may.set()


@pytest.mark.parametrize("how", ["progress", "save"])
async def test_a_connection_that_is_closed_is_no_answer_and_cancels_nobody(
    slow: Slow, how: str
) -> None:
    async with Orchestrators() as orchestrators:
        call = asyncio.create_task(getattr(orchestrators, how)("uid", HOST, "secret"))
        await slow.asked.wait()
        await orchestrators.forget("uid")
        assert isinstance(await call, Unanswered)
        slow.may.set()
        again = await getattr(orchestrators, how)("uid", HOST, "secret")
        assert not isinstance(again, Unanswered)


async def test_who_is_cancelled_himself_is_not_kept_from_it(slow: Slow) -> None:
    async with Orchestrators() as orchestrators:
        call = asyncio.create_task(orchestrators.progress("uid", HOST, "secret"))
        await slow.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_connection_that_ends_before_the_call_begins_is_no_answer(slow: Slow) -> None:
    async with Orchestrators() as orchestrators:
        call = asyncio.create_task(orchestrators.progress("uid", HOST, "secret"))
        await asyncio.sleep(0)
        await orchestrators.forget("uid")
        assert isinstance(await call, Unanswered)


async def test_another_token_opens_another_connection(slow: Slow) -> None:
    slow.may.set()
    async with Orchestrators() as orchestrators:
        refused = await orchestrators.progress("uid", HOST, "wrong")
        assert refused == Unanswered("UNAUTHENTICATED: this call carries no valid job token")
        said = await orchestrators.progress("uid", HOST, "secret")
        assert isinstance(said, Progress)
        assert (said.phase, said.step) == ("Training", 3)
