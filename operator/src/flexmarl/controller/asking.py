"""Asks orchestrators how far they are; nothing is kept but connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import grpc.aio

from flexmarl.contracts.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from flexmarl.controller.observed import Progress
from flexmarl.controller.render.parts import PORT
from flexmarl.runtime.grpc import channel

SECONDS = 5.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Unanswered:
    why: str


@dataclass(frozen=True, slots=True)
class _Connection:
    address: str
    token: str
    channel: grpc.aio.Channel
    stub: orchestrator_pb2_grpc.OrchestratorAsyncStub


class Orchestrators:
    """Connections to the orchestrators of all jobs, each opened once per pod."""

    def __init__(self) -> None:
        self._open: dict[str, _Connection] = {}
        """By uid of the job."""

    async def __aenter__(self) -> Orchestrators:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for uid in list(self._open):
            await self.forget(uid)

    async def progress(self, uid: str, ip: str, token: str) -> Progress | Unanswered:
        stub = await self._stub(uid, ip, token)
        said = await _answered(
            lambda: stub.Progress(orchestrator_pb2.ProgressRequest(), timeout=SECONDS)
        )
        if isinstance(said, Unanswered):
            return said
        return Progress(
            phase=said.phase,
            step=said.step,
            steps=said.steps,
            message=said.message,
            saved=said.saved if said.HasField("saved") else -1,
            wanted=dict(said.wanted),
            engines=dict(said.engines),
            reward=said.reward if said.HasField("reward") else None,
            tokens_per_second=(
                said.tokens_per_second if said.HasField("tokens_per_second") else None
            ),
            store_away=said.store_away,
            store_full=(
                (said.store_full.used >> 20, said.store_full.most >> 20)
                if said.HasField("store_full")
                else None
            ),
        )

    async def save(self, uid: str, ip: str, token: str) -> Unanswered | None:
        """Have the last finished step saved."""
        stub = await self._stub(uid, ip, token)
        said = await _answered(lambda: stub.Save(orchestrator_pb2.SaveRequest(), timeout=SECONDS))
        return said if isinstance(said, Unanswered) else None

    async def forget(self, uid: str) -> None:
        """Calls under way are not answered."""
        known = self._open.pop(uid, None)
        if known is not None:
            await known.channel.close()

    async def _stub(
        self, uid: str, ip: str, token: str
    ) -> orchestrator_pb2_grpc.OrchestratorAsyncStub:
        host = f"[{ip}]" if ":" in ip else ip
        address = f"{host}:{PORT}"
        known = self._open.get(uid)
        if known is not None and (known.address, known.token) == (address, token):
            return known.stub
        opened = channel(address, token)
        stub = orchestrator_pb2_grpc.OrchestratorStub(opened)
        self._open[uid] = _Connection(address, token, opened, stub)
        if known is not None:
            await known.channel.close()
        return stub


async def _answered(call: Callable[[], Awaitable[Answer]]) -> Answer | Unanswered:
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        return Unanswered(f"{error.code().name}: {error.details()}")
    except grpc.aio.UsageError as error:
        return Unanswered(str(error))
    except asyncio.CancelledError:
        # Closing a channel cancels its calls, and looks to who awaits one as if that were he.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Unanswered("the connection was closed")
