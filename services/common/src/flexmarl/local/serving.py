"""What `flexmarl serve NAME` runs: one process of the platform."""

import gc
import importlib
import os
import signal
from collections.abc import Callable

from flexmarl.local.roles import MODULES


def main_of(role: str) -> Callable[[], None]:
    """What is to be called, imported. ModuleNotFoundError: an extra is not installed."""
    if os.getpid() == 1:
        # The kernel drops what pid 1 of a container does not handle; imports take a while.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    gc.disable()  # imports make only what stays
    try:
        main: Callable[[], None] = importlib.import_module(MODULES[role]).main
    finally:
        gc.enable()
    return main
