"""How a process of the platform gets its code, with as little as it needs."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flexmarl.local.roles import MODULES


def main_of(role: str) -> Callable[[], None]:
    """What `flexmarl serve NAME` calls. ModuleNotFoundError: an extra is not installed."""
    if os.getpid() == 1:
        # The kernel drops what pid 1 of a container does not handle; imports take a while.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    return imported(MODULES[role])


def imported(module: str) -> Callable[[], None]:
    """Its `main`."""
    gc.disable()  # imports make only what stays
    try:
        _log_plainly()
        main: Callable[[], None] = importlib.import_module(module).main
    finally:
        gc.enable()
    return main


def _log_plainly() -> None:
    """structlog imports rich if it is there: for tracebacks in colours, which ours never are."""
    if "rich" in sys.modules:
        return
    absent: Any = None
    sys.modules["rich"] = absent  # as the import system notes it
    try:
        importlib.import_module("structlog")
    finally:
        sys.modules.pop("rich", None)
