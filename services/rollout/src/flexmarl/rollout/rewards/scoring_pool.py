"""Scoring processes from the worker's side: a few of them, each killed when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import signal
import sys
from collections.abc import Mapping
from typing import Any

from flexmarl.rollout.border import waiting
from flexmarl.rollout.rewards.errors import RewardError, RewardTimeoutError

START_SECONDS = 120.0
GRACE_SECONDS = 1.0
"""How much longer than the timeout a process has to end itself before it is killed."""
LONGEST_LINE = 16 << 20


class ScoringPool:
    """Up to `size` processes of `flexmarl.rollout.rewards.scoring_process`, started when needed."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind, size
        self._slots: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._running: set[asyncio.subprocess.Process] = set()
        for _ in range(size):
            self._slots.put_nowait(None)

    async def start(self) -> None:
        """Start the first process; RewardError when what it needs is not installed."""
        process = await self._slots.get()
        try:
            process = process or await self._launch()
        finally:
            self._slots.put_nowait(process)

    async def close(self) -> None:
        for process in list(self._running):
            await self._end(process)

    async def score(self, request: Mapping[str, Any], seconds: float) -> float:
        """The score; waiting for a free process is not part of the `seconds`, nor of the time of
        the code that asks.

        RewardTimeoutError, or RewardError with the scorer's own words.
        """
        with waiting():
            process = await self._slots.get()
        answered = False
        try:
            process = process or await self._launch()
            reply = await self._ask(process, {**request, "timeout": seconds}, seconds)
            answered = True
        finally:
            if process is not None and not answered:
                self._kill(process)
                process = None
            self._slots.put_nowait(process)
        if "error" in reply:
            raise RewardError(str(reply["error"]))
        score = float(reply["score"])
        if not math.isfinite(score):
            raise RewardError(f"the {self._kind} scorer gave {score}")
        return score

    async def _ask(
        self, process: asyncio.subprocess.Process, request: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        code = -signal.SIGALRM
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
                if line:
                    reply: dict[str, Any] = json.loads(line)
                    return reply
                code = await process.wait()
        if code == -signal.SIGALRM:
            raise RewardTimeoutError(f"the {self._kind} scorer took more than {seconds} s")
        raise RewardError(f"the {self._kind} scorer died with exit code {code}")

    async def _launch(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flexmarl.rollout.rewards.scoring_process",
            self._kind,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        self._running.add(process)
        assert process.stdout is not None
        ready = b""
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.stdout.readline()
        finally:
            if not ready:
                self._kill(process)
        if not ready:
            raise RewardError(
                f"the {self._kind} scorer did not start; pip install 'flexmarl[tasks]' brings what "
                "it needs, the log says more"
            )
        return process

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """End it without waiting; the event loop reaps it."""
        self._running.discard(process)
        if process.returncode is None:
            process.kill()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._kill(process)
        await process.wait()
