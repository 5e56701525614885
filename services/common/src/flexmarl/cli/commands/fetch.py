"""`flexmarl fetch URI...`: models, data and code into the cache, as pods do."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flexmarl.cli.console import FAILED, OK, leave, say, warn

if TYPE_CHECKING:
    from flexmarl.fetch.fetching import Fetched

HOPELESS = 3
"""Trying again cannot help; 1: it can."""


def command(
    uris: Annotated[
        list[str] | None,
        typer.Argument(metavar="URI", help="hf://, s3:// or git+https://; others are left."),
    ] = None,
    part: Annotated[
        str, typer.Option(metavar="PART", help="model, tokenizer or all: which files.")
    ] = "all",
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also put the files into this folder.")
    ] = None,
    message: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the outcome, as one line of JSON."),
    ] = None,
) -> None:
    """Fetch what a job names by URI, from where it last stopped.

    Addresses and keys come from HF_ENDPOINT, HF_TOKEN, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, GIT_USERNAME and GIT_PASSWORD. Exit code 1: may be tried again; 3: may
    not, until the URI, the key or the source is mended.
    """
    from flexmarl.fetch.errors import FetchError
    from flexmarl.fetch.fetching import copy_into, fetch
    from flexmarl.fetch.sources import Part
    from flexmarl.runtime.logging import configure

    signal.signal(signal.SIGTERM, _stop)  # the first process of a container has no default
    configure("fetch", "console" if sys.stderr.isatty() else "json")
    if part not in list(Part):
        raise typer.BadParameter(f"{part} is none of {', '.join(Part)}", param_hint="--part")
    brought: list[Fetched] = []
    try:
        for uri in uris or ():
            found = fetch(uri, Part(part), reader="")
            if found.unchecked:
                warn(f"{found.unchecked}; what the cache holds is used")
            say(f"{uri}: {found.folder or 'nothing to fetch'}")
            if into and found.folder:
                copy_into(found, into)
            brought.append(found)
    except FetchError as error:
        outcome = {"reason": error.reason.value, "retry": not error.hopeless}
        _tell(message, outcome | {"uri": error.uri[:500], "message": str(error)[:1500]})
        warn(str(error))
        leave(HOPELESS if error.hopeless else FAILED)
    sums = {key: sum(getattr(one, key) for one in brought) for key in ("bytes", "resumed")}
    seconds = round(sum(one.seconds for one in brought), 3)
    _tell(message, {"reason": "Fetched", "sources": len(brought), **sums, "seconds": seconds})
    leave(OK)


def _tell(file: Path | None, outcome: dict[str, Any]) -> None:
    """One line: Kubernetes keeps 4096 bytes of it."""
    import json

    if file is not None:
        file.write_text(json.dumps(outcome, ensure_ascii=False) + "\n", encoding="utf-8")


def _stop(number: int, _frame: object) -> None:
    os._exit(128 + number)  # all that is on disk may be left as it is, at any moment
