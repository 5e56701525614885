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
    typer.Argument(metavar="RUN", help="A run below runs/, or its folder; the newest if left out."),
]
AnyRunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run below runs/, or its folder; the newest if left out. A MARLJob's name where "
        "there is no such run, or with --namespace or --context.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the MARLJob.")]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="On a cluster: where the job is; the context's own.",
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE", help="On a cluster: what reads the claim; the installation's own image."
    ),
]
ClaimOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="On a cluster: the claim that holds the run, where the job, which named it, is gone.",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="On a cluster: which of the kubeconfig; the current one."),
]
