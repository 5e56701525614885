"""The command line: `flexmarl`. Modules load when a command runs."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point of the `flexmarl` script."""
    try:
        if not _served(sys.argv[1:]):
            from flexmarl.cli.app import main as run

            run()
    except KeyboardInterrupt:  # while modules load, or anywhere that no command answers for
        sys.exit(INTERRUPTED)


def _served(arguments: list[str]) -> bool:
    """Run the process that `serve NAME` names without the command line's libraries: every pod waits
    for it. False: there is none such, or it cannot be imported, which the command line puts into
    words."""
    if len(arguments) != 2 or arguments[0] != "serve":
        return False
    from flexmarl.local.roles import MODULES

    if arguments[1] not in MODULES:
        return False
    from flexmarl.local.serving import main_of

    try:
        process = main_of(arguments[1])
    except ModuleNotFoundError:
        return False
    process()
    return True
