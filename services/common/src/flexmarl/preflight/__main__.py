"""`python -m flexmarl.preflight PLAN` is `flexmarl preflight PLAN` without the command line's
libraries: every pod waits for it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flexmarl.preflight.running import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="flexmarl.preflight", description=__doc__)
    parser.add_argument("plan", help="What is to be done, as JSON.")
    parser.add_argument("--message", type=Path, help="Where to write the outcome.")
    arguments = parser.parse_args()
    sys.exit(run(arguments.plan, arguments.message))


if __name__ == "__main__":
    main()
