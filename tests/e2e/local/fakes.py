"""A stand-in for every role, so that tests see the supervisor alone.

The file NAME.do in the run directory tells it what to do: `exit CODE`, `raise`, `deaf`, `spawn` or
`complete`. Without one it serves until it is asked to stop. Whoever is told of a store by
TESTED_STORE keeps keys in it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import redis

from flexmarl.experience.keys import Keys, job_tag


def main() -> None:
    address = os.environ["FLEXMARL_LISTEN"].removeprefix("unix://")
    name = Path(address).stem
    run_dir = Path(os.environ["FLEXMARL_RUN_DIR"])
    with (run_dir / "starts").open("a") as file:
        file.write(f"{name} {os.getpid()} {'torch' in sys.modules}\n")
    print(f"{name} says hello", flush=True)
    if store := os.environ.get("TESTED_STORE"):
        with redis.Redis.from_url(store) as client:
            keys = Keys(job_tag("default", "team", os.environ["FLEXMARL_JOB_UID"]))
            client.hset(keys.state, name, "x")
    order = run_dir / f"{name}.do"
    words = order.read_text().split() if order.exists() else [""]
    match words:
        case ["exit", code]:
            print(f"{name} has enough", file=sys.stderr)
            sys.exit(int(code))
        case ["raise"]:
            raise RuntimeError(f"{name} is broken")
        case ["deaf"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case ["complete"]:
            (run_dir / "progress.json").write_text('{"phase": "Complete"}')
        case ["spawn"]:
            for session in (False, True):  # one stays in the group, one leaves it
                subprocess.Popen(["sleep", "1000"], start_new_session=session)
    asyncio.run(serve(address, run_dir, name))


async def serve(address: str, run_dir: Path, name: str) -> None:
    stop = asyncio.Event()
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), address)
    async with server:
        await stop.wait()
    with (run_dir / "stops").open("a") as file:
        file.write(f"{name}\n")
