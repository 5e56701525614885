"""`flexmarl run` as a child that ends with the bench, however the bench ends.

As a program, `python -m flexmarl.bench.child PARENT ARGUMENT...`, it is `flexmarl ARGUMENT...` that
stops in order when the process PARENT dies, even of SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flexmarl.local.system import tie_to_parent

STOP_SECONDS = 30.0
"""How long an orderly end may take."""


@asynccontextmanager
async def run_of(job: str, *arguments: str) -> AsyncIterator[Process]:
    """`flexmarl run job`, silent but for the errors in its `stderr`; ended at the block's end."""
    command = ("-m", "flexmarl.bench.child", str(os.getpid()), "run", job, "--plain", *arguments)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=DEVNULL, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def main() -> None:
    """Arguments: pid of the parent, arguments of `flexmarl`."""
    parent, *arguments = sys.argv[1:]
    tie_to_parent(int(parent), "flexmarl", signal.SIGTERM)
    sys.argv = ["flexmarl", *arguments]
    runpy.run_module("flexmarl.cli", run_name="__main__")


if __name__ == "__main__":
    main()
