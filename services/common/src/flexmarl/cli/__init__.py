"""The `flexmarl` command."""


def main() -> None:
    from flexmarl.cli.app import app

    app()
