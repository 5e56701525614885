"""Where the orchestrator can be asked: how far it is, and to save and rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from flexmarl.contracts.v1 import experience_pb2, orchestrator_pb2_grpc
from flexmarl.contracts.v1 import orchestrator_pb2 as pb


class Desk:
    """What the outside is told and asks for; the job writes and reads it."""

    def __init__(self) -> None:
        self.said: Mapping[str, Any] = {}
        """As in `progress.json`."""
        self.line: Mapping[str, Any] | None = None
        """Of the last step, as in `metrics.jsonl`."""
        self.save = asyncio.Event()
        """The last finished step is to be saved, and no other begun."""
        self.saved: int | None = None
        self.wanted: Mapping[str, int] = {}
        """Engines, by pool."""
        self.engines: Mapping[str, int] = {}
        """Those that serve it, by policy."""
        self.store_away = ""
        """Why the store does not answer; empty: it does."""
        self.store_full: experience_pb2.Memory | None = None
        """Once groups have waited for room in it for long."""

    async def unless_to_save(
        self, work: Coroutine[Any, Any, None], beyond: Callable[[], bool] = lambda: False
    ) -> bool:
        """Whether `work` is done; False: it was given up, or not begun, because the job is to be
        saved. Once it is `beyond` that, it is done nevertheless."""
        if self.save.is_set():
            work.close()
            return False
        working = asyncio.create_task(work)
        asked = asyncio.create_task(self.save.wait())
        try:
            both: set[asyncio.Task[Any]] = {working, asked}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and not beyond():
                return False
            await working
            return True
        finally:
            for task in (working, asked):
                task.cancel()
            await asyncio.gather(working, asked, return_exceptions=True)


class DeskService(orchestrator_pb2_grpc.OrchestratorServicer):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressResponse:  # noqa: N802
        desk, said = self._desk, self._desk.said
        answer = pb.ProgressResponse(
            phase=said.get("phase", ""),
            step=said.get("step", 0),
            steps=said.get("steps", 0),
            message=said.get("message", ""),
            groups_done=said.get("groups_done", 0),
            groups_total=said.get("groups_total", 0),
            saved=desk.saved,
            wanted=desk.wanted,
            engines=desk.engines,
            store_away=desk.store_away,
            store_full=desk.store_full,
        )
        if desk.line is not None:
            rewards = [agent.get("reward") for agent in desk.line["agents"].values()]
            known = [reward for reward in rewards if reward is not None]
            if known:
                answer.reward = sum(known) / len(known)
            seconds = desk.line["seconds"]["step"]
            if seconds > 0:
                answer.tokens_per_second = desk.line["tokens"]["sampled"] / seconds
        return answer

    async def Save(self, request: pb.SaveRequest, context: Any) -> pb.SaveResponse:  # noqa: N802
        self._desk.save.set()
        return pb.SaveResponse()
