"""Preflight as a process: a plan in, last words and an exit code out."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from flexmarl.contracts.preparation import PASSING, Kind, Preparation
from flexmarl.preflight.preparing import blocking, prepare

HOPELESS = 3
"""As of every process of ours: trying again cannot help."""
STORE_URL = "FLEXMARL_STORE_URL"


def run(plan: str, message: Path | None = None) -> int:
    """The exit code. One line of JSON goes to `message`, findings to stderr."""
    signal.signal(signal.SIGTERM, _stop)  # the first process of a container has no default
    wanted = Preparation.read(plan)
    if wanted.sources or wanted.code:
        from flexmarl.runtime.logging import configure

        configure("preflight", "json")
    report = prepare(wanted, os.environ.get(STORE_URL, "").strip())
    for found in report.findings:
        print(f"{found.reason}: {found.message}", file=sys.stderr)
    if message is not None:
        message.write_text(report.text() + "\n", encoding="utf-8", errors="replace")
    if any(found.kind is Kind.HOPELESS for found in report.findings):
        return HOPELESS
    return PASSING if blocking(report.findings) else 0


def _stop(number: int, _frame: object) -> None:
    os._exit(128 + number)  # all that is on disk may be left as it is, at any moment
