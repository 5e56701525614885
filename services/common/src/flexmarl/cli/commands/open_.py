"""`flexmarl open [RUN]`: the page of a run or of a MARLJob, in the browser."""

from __future__ import annotations

from flexmarl.cli.commands.arguments import AnyRunArgument, ContextOption, NamespaceOption
from flexmarl.cli.console import CommandError, say


def command(
    run: AnyRunArgument = None, namespace: NamespaceOption = None, context: ContextOption = None
) -> None:
    """Open a run's report, or the web page of a MARLJob, in the browser; its address is printed."""
    import webbrowser

    from flexmarl.cli.commands.report import write
    from flexmarl.cli.commands.target import local_run

    root = local_run(run, namespace, context)
    if root is not None:
        address = write(root).resolve().as_uri()
    else:
        from flexmarl.cli.cluster import ask
        from flexmarl.cli.jobs import find, phase_of, status_of

        job = ask(find(str(run), namespace, context))
        address = str(status_of(job).get("url") or "")
        if not address.startswith(("http://", "https://")):
            raise CommandError(
                f"marljob {run} ({phase_of(job)}) has no page; it has one while its orchestrator "
                "runs, if the installation gives it an address"
            )
    say(address)
    webbrowser.open(address)
