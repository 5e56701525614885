"""The command line: `flexmarl`. Modules load when a command runs."""


def main() -> None:
    """Entry point of the `flexmarl` script."""
    from flexmarl.cli.app import main as run

    run()
