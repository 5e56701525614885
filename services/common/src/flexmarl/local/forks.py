"""The supervisor's end of the warm parent: asks it for processes, starts it anew when it died."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexmarl.local.system import Child, last_lines, spawn

IMPORTS = (
    "torch",
    "torch._dynamo",  # an optimizer's first step imports it
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "safetensors.torch",
    "numpy",
    "xxhash",
    "tokenizers",
    "jinja2",
    "yaml",
    "stamina",
    "structlog",
    "prometheus_client",
    "google.protobuf.descriptor_pool",
    "google.protobuf.internal.builder",
    "flexmarl.contracts.reading",
    "flexmarl.runtime.settings",
    "flexmarl.runtime.seeds",
)
"""Nothing here may import grpc: its threads would not survive a fork."""


class ColdError(Exception):
    """The warm parent cannot start here; the text says why."""


class WarmParent:
    """Started by the first `fork`, or ahead of it by `start`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        started: Callable[[Child], None],
        imports: Sequence[str] = IMPORTS,
    ) -> None:
        self._environment, self._log, self._imports = environment, log, imports
        self._started = started
        self._turn = asyncio.Lock()
        self._child: Child | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready = False
        self._begin = 0
        self._failure = ""

    async def start(self) -> None:
        """Begin to import; does not wait for the end of it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._begin = self._log.stat().st_size if self._log.exists() else 0
            arguments = ["-m", "flexmarl.local.warm", str(os.getpid()), *self._imports]
            pid = spawn(arguments, self._environment, self._log, stdin=theirs.fileno())
        self._child, self._ready = Child(pid), False
        self._started(self._child)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    async def fork(self, name: str, module: str, environment: Mapping[str, str], log: Path) -> int:
        """The pid of a new process. ColdError when the warm parent cannot even import."""
        request = {"name": name, "module": module, "environment": environment, "log": str(log)}
        async with self._turn:
            if self._failure:
                raise ColdError(self._failure)
            for _ in range(2):
                if self._writer is None:
                    await self.start()
                if not self._ready:
                    # Two failures to import in a row have a reason that a third try will not mend.
                    self._ready = await self._answer() is not None
                if self._ready:
                    answer = await self._ask(request)
                    if answer is not None:
                        return int(answer["pid"])
                await self.close()
            words = last_lines(self._log, self._begin, 1)
            self._failure = words[0] if words else "it was killed twice"
            raise ColdError(self._failure)

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        assert self._writer is not None
        self._writer.write(json.dumps(request).encode() + b"\n")
        # A process that was asked for must become known: cancelling waits for the answer.
        asking = asyncio.ensure_future(self._answer())
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            answer = await asking
            if answer is not None:
                Child(int(answer["pid"])).kill()
            raise

    async def _answer(self) -> dict[str, Any] | None:
        """The next line; None when the warm parent has ended."""
        assert self._reader is not None
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        answer: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return answer

    async def close(self) -> None:
        """End it. Processes that came from it live on."""
        child, self._child = self._child, None
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None
        if child is not None:
            child.kill()
            await child.ended


def python_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Of every process: `base` without settings of ours, one thread per library unless it says."""
    kept = {name: value for name, value in base.items() if not name.startswith("FLEXMARL_")}
    defaults = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a GPU does not open it before a fork
    }
    return defaults | kept | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
