"""Puts the commands together, and turns errors that say what to do into words and exit codes.

Each command is a module with one function, light to import: whatever it needs it imports when it
runs, so that `flexmarl --help` answers at once. A command with subcommands brings a `typer.Typer`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from flexmarl.cli.commands import (
    apply,
    bench,
    episodes,
    export,
    fetch,
    logs,
    open_,
    preflight,
    report,
    resume,
    run,
    serve,
    status,
    suspend,
    validate,
    version,
)
from flexmarl.cli.console import FAILED, INTERRUPTED, INVALID, CommandError, warn

HELP = """Train teams of language-model agents by reinforcement learning.

A job is a MARLJob in a YAML file; `flexmarl run job.yaml` trains it on this machine, with all
processes under one supervisor. What happened is kept in runs/NAME. `flexmarl apply job.yaml` trains
it on a Kubernetes cluster where FlexMARL is installed.
"""
EXIT_CODES = """Exit codes: 0 done; 1 failed (the reason is on stderr); 2 the job file or the
command is invalid; 130 interrupted by Ctrl-C."""


EXTRAS = {"kubernetes": "cluster", "aiohttp": "cluster", "obstore": "fetch", "dulwich": "fetch"}
"""Packages that not every installation has, by the extra that brings them."""


class Commands(TyperGroup):
    """In the order they are added; errors of ours become words."""

    def invoke(self, ctx: Any) -> Any:
        from flexmarl.contracts.problems import JobFileError

        try:
            return super().invoke(ctx)
        except CommandError as error:
            warn(str(error))
            raise typer.Exit(error.exit_code) from None
        except JobFileError as error:
            warn(str(error))
            raise typer.Exit(INVALID) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            extra = EXTRAS.get(str(error.name).partition(".")[0])
            if extra is None:
                raise
            warn(f"{error.name} is missing: pip install 'flexmarl[{extra}]'")
            raise typer.Exit(FAILED) from None
        except typer.Exit:  # before what is imported for errors
            raise
        except BrokenPipeError:  # the reader, `head` for one, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            from flexmarl.runtime.errors import FlexMARLError, InvalidRequestError

            if not isinstance(error, FlexMARLError):
                raise
            warn(str(error))
            invalid = isinstance(error, InvalidRequestError)
            raise typer.Exit(INVALID if invalid else FAILED) from None


app = typer.Typer(
    cls=Commands,
    help=HELP,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
LOCALLY = (run, validate)
ON_A_CLUSTER = (apply, suspend, resume)
IN_BOTH_PLACES = (status, logs, report, open_)
OTHERS = (episodes, export, fetch, preflight, serve, version)
for module in (*LOCALLY, *ON_A_CLUSTER, *IN_BOTH_PLACES, *OTHERS):
    app.command(module.__name__.rsplit(".", 1)[1].rstrip("_"), epilog=EXIT_CODES)(module.command)
app.add_typer(bench.app, name="bench", epilog=EXIT_CODES)


def main() -> None:
    app(prog_name="flexmarl")
