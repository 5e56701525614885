"""A Kubernetes cluster for tests: one node on this machine, in a network namespace of its own.

python -m tests.cluster up            start it (a second call finds it running)
python -m tests.cluster exec CMD...   run something that talks to it: kubectl, helm, pytest
python -m tests.cluster push [NAME..] build our images from the working tree and push them to it
python -m tests.cluster api CMD...    the same with an API server alone, of no node, on this network
python -m tests.cluster down          end it; what it pulled and compiled stays for the next time
python -m tests.cluster e2e [...]     everything for tests/e2e/cluster; more arguments go to pytest
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from . import e2e
from .api import DIES_WITH_US, api_server
from .images import Builder
from .layout import gang_scheduling, layout
from .node import Node, require_root
from .programs import MissingError, install, install_api


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    only = commands.add_parser("install", help="only fetch, compile and build images")
    only.add_argument("--api", action="store_true", help="what `api` needs: no node, no images")
    commands.add_parser("up")
    commands.add_parser("down")
    commands.add_parser("exec").add_argument("argv", nargs=argparse.REMAINDER)
    commands.add_parser("api").add_argument("argv", nargs=argparse.REMAINDER)
    commands.add_parser("push").add_argument("names", nargs="*")
    tests = commands.add_parser("e2e")
    tests.add_argument("--full", action="store_true")
    arguments, rest = parser.parse_known_args()
    if rest and arguments.command != "e2e":
        parser.error(f"unknown: {' '.join(rest)}")
    where = layout()
    node = Node(where)
    signal.signal(signal.SIGTERM, _end)
    match arguments.command:
        case "install":
            if arguments.api:
                install_api(where)
            else:
                require_root()
                install(where)
                builder = Builder(where)
                with builder.alone():
                    builder.build([])
        case "up":
            node.up(gang=gang_scheduling())
        case "down":
            node.down()
        case "exec":
            if not node.is_up():
                raise MissingError("no node runs: python -m tests.cluster up")
            node.replace_process(arguments.argv)
        case "api":
            with api_server(where) as kubeconfig:
                environment = {**node.environment(), "KUBECONFIG": str(kubeconfig)}
                command = [*DIES_WITH_US, *arguments.argv]
                return subprocess.run(command, env=environment, check=False).returncode
        case "push":
            builder = Builder(where)
            with node.in_use(), builder.alone(), tempfile.TemporaryDirectory() as directory:
                builder.build(arguments.names)
                node.push(arguments.names, builder, Path(directory) / "images.yaml")
        case "e2e":
            return e2e.run(where, rest, full=arguments.full, gang=gang_scheduling())
    return 0


def _end(signum: int, _: FrameType | None) -> None:
    """As Ctrl-C does: what was started is ended on the way out."""
    sys.exit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MissingError, subprocess.CalledProcessError) as error:
        sys.exit(f"cluster: {error}")
