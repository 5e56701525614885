"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="The MARLJob, a YAML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a field of the job; may be repeated: --set spec.seed=1 "
        "--set spec.agents[solver].sampling.maxTokens=8",
    ),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", help="A run below runs/, or its folder; the newest if left out."
    ),
]
