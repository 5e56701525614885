"""`flexmarl open [RUN]`: the report of a run or of a MARLJob, in the browser."""

from __future__ import annotations

from flexmarl.cli.commands.arguments import (
    AnyRunArgument,
    ClaimOption,
    ContextOption,
    ImageOption,
    NamespaceOption,
)
from flexmarl.cli.console import say


def command(
    run: AnyRunArgument = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    image: ImageOption = None,
    claim: ClaimOption = None,
) -> None:
    """Open a run's report in the browser, and print its address.

    Of a MARLJob, it is made as by `flexmarl report`.
    """
    import webbrowser

    from flexmarl.cli.commands.report import write
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context, claim)
    if root is not None:
        address = write(root).resolve().as_uri()
    else:
        from flexmarl.cli.connection import ask
        from flexmarl.cli.reading import Where, copied_run

        root = ask(copied_run(str(run), Where(namespace, context, image, claim)))
        address = write(root, copied=True).resolve().as_uri()
    say(address)
    webbrowser.open(address)
