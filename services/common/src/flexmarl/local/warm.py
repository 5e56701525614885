"""The warm parent: imports what is slow to import once, then forks engines and trainers.

It runs one thread, starts no gRPC and touches no GPU, so a fork of it is as good as a new process.
Requests come as JSON lines on its standard input, a socket: name, module, environment, log. Each
is answered with the pid of a process that is, through a fork in between, a child of the supervisor:
it outlives this process and the supervisor sees its exit itself.
"""

import faulthandler
import gc
import importlib
import json
import os
import random
import sys
import time
import traceback
from typing import Any, NoReturn

from flexmarl.local.system import tie_to_parent


def main() -> None:
    """Arguments: pid of the supervisor, then the modules to import."""
    supervisor, modules = int(sys.argv[1]), sys.argv[2:]
    tie_to_parent(supervisor, "warm")
    started = time.perf_counter()
    gc.disable()  # imports make only what stays
    for module in modules:
        importlib.import_module(module)
    check_forkable()
    gc.freeze()  # else the first collection of a child would copy every page
    answer({"seconds": time.perf_counter() - started})
    for line in sys.stdin:
        answer({"pid": fork(json.loads(line), supervisor)})


def answer(message: dict[str, Any]) -> None:
    os.write(0, json.dumps(message).encode() + b"\n")


def check_forkable() -> None:
    """RuntimeError when an import has started a thread: a fork would not have it."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"importing started {threads - 1} threads; processes start without fork")


def fork(request: dict[str, Any], supervisor: int) -> int:
    """The pid of a process for `request`. OSError when there is no room for one."""
    receiving, sending = os.pipe()
    between = os.fork()
    if between == 0:
        between, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(receiving)
            os.close(sending)
            become(request, between, supervisor)
        os.write(sending, str(pid).encode())
        os._exit(0)
    os.close(sending)
    os.waitpid(between, 0)  # then its child is the supervisor's
    text = os.read(receiving, 32)
    os.close(receiving)
    if not text:
        raise OSError("fork failed")
    return int(text)


def become(request: dict[str, Any], between: int, supervisor: int) -> NoReturn:
    """Run the requested process to its end, in the forked child."""
    while os.getppid() == between:
        time.sleep(0.0005)
    tie_to_parent(supervisor, request["name"])
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["name"]]
    random.seed()
    faulthandler.enable()
    gc.enable()
    os._exit(run(request["module"]))


def run(module: str) -> int:
    """The exit code of the module's `main()`, as the interpreter would give it."""
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()
