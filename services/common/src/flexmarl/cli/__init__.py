"""The command line: `flexmarl`. Modules load when a command runs."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point of the `flexmarl` script."""
    try:
        from flexmarl.cli.app import main as run

        run()
    except KeyboardInterrupt:  # while modules load, or anywhere that no command answers for
        sys.exit(INTERRUPTED)
