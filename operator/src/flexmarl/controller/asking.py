"""Asks orchestrators how far they are; nothing is kept but connections."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType

import grpc.aio

from flexmarl.contracts.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from flexmarl.controller.observed import Progress
from flexmarl.controller.render.parts import PORT
from flexmarl.runtime.grpc import channel

SECONDS = 5.0


class Orchestrators:
    """Connections to the orchestrators of all jobs, each opened once per pod."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: dict[
            str, tuple[str, AsyncExitStack, orchestrator_pb2_grpc.OrchestratorAsyncStub]
        ]
        self._open = {}
        """By uid of the job: address, and how to close it."""

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

    async def progress(self, uid: str, ip: str, token: str) -> Progress | None:
        """None: it does not answer."""
        stub = await self._stub(uid, ip, token)
        try:
            said = await stub.Progress(orchestrator_pb2.ProgressRequest(), timeout=SECONDS)
        except grpc.aio.AioRpcError:
            return None
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
        )

    async def save(self, uid: str, ip: str, token: str) -> bool:
        """Have the last finished step saved; False: it does not answer."""
        stub = await self._stub(uid, ip, token)
        try:
            await stub.Save(orchestrator_pb2.SaveRequest(), timeout=SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def forget(self, uid: str) -> None:
        if uid in self._open:
            await self._open.pop(uid)[1].aclose()

    async def _stub(
        self, uid: str, ip: str, token: str
    ) -> orchestrator_pb2_grpc.OrchestratorAsyncStub:
        host = f"[{ip}]" if ":" in ip else ip
        address = f"{host}:{PORT}"
        known = self._open.get(uid)
        if known is None or known[0] != address:
            await self.forget(uid)
            stack = AsyncExitStack()
            opened = await stack.enter_async_context(channel(address, token))
            known = address, stack, orchestrator_pb2_grpc.OrchestratorStub(opened)
            self._open[uid] = known
        return known[2]
