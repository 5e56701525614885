"""All that a pod does before its process starts, in the order in which it costs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from flexmarl.contracts.preparation import Found, Kind, Preparation, Report, Source
from flexmarl.preflight import checks, reach

CODE_CACHE = "flexmarl-code"
"""In the folder of temporary files, not in the cache: a branch is to be read anew by each pod."""


def prepare(plan: Preparation, store_url: str = "") -> Report:
    """What was found and brought. Nothing is fetched for a pod that cannot start anyway."""
    began = time.monotonic()
    findings: list[Found] = []
    brought, fetching = 0, False
    try:
        findings += _looked_at(plan, store_url or plan.store_url)
        if not blocking(findings):
            fetching = True
            for source in (*([plan.code] if plan.code else []), *plan.sources):
                bytes_, found = _fetch(
                    source, Path(plan.into) if source is plan.code else None, plan.job
                )
                brought += bytes_
                findings += found
                if blocking(found):
                    break
            else:
                fetching = False
                findings += _states(plan)
    except BaseException as error:  # a panic of a library is no Exception
        if not isinstance(error, Exception) and type(error).__module__ == "builtins":
            raise
        findings.append(_unforeseen(error, fetching=fetching))
    sources = len(plan.sources) + bool(plan.code)
    seconds = round(time.monotonic() - began, 3)
    return Report(findings=findings, sources=sources, bytes=brought, seconds=seconds)


def _unforeseen(error: BaseException, *, fetching: bool) -> Found:
    """Its kind and its place. Not its words, nor its traceback's: they may quote a key, and end in
    the job's status and in logs."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in frames:
        print(f"  {frame.filename}:{frame.lineno} in {frame.name}", file=sys.stderr)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    says = (
        f"{type(error).__name__} at {where}, which FlexMARL did not foresee; look at the Secrets "
        "and URIs of the job, and report it"
    )
    return Found(reason="UnexpectedError", message=says, kind=Kind.PASSING, fetching=fetching)


def blocking(findings: Iterable[Found]) -> bool:
    return any(one.kind is not Kind.WARNING for one in findings)


def _looked_at(plan: Preparation, store_url: str) -> Iterator[Found]:
    yield from checks.volumes(plan.writable)
    yield from checks.gpus(plan.gpus, plan.gpu_resource)
    if plan.files:
        yield from _files(plan)
    for uri in plan.mounted:
        yield from _mounted(uri)
    if plan.experience:
        yield from reach.experience(plan.experience)
    if plan.store:
        yield from reach.store(store_url, plan.ca_file)


def _files(plan: Preparation) -> Iterator[Found]:
    source, into = Path(plan.files), Path(plan.into)
    if plan.archive:
        from flexmarl.fetch.archive import unpack
        from flexmarl.fetch.errors import FetchError

        try:
            unpack(source / plan.archive, into)
        except FetchError as error:
            yield _of_fetch(error)
        return
    try:
        for path in source.iterdir():
            if not path.name.startswith(".."):  # the kubelet's own links
                shutil.copyfile(path, into / path.name)
    except OSError as error:
        says = f"the job's files cannot be laid out: {error.filename}: {error.strerror}"
        yield Found(reason="VolumeNotWritable", message=says, kind=Kind.PASSING)


def _mounted(uri: str) -> Iterator[Found]:
    from flexmarl.fetch.errors import FetchError
    from flexmarl.fetch.sources import mounted

    try:
        mounted(uri).stat()
    except FetchError as error:
        yield _of_fetch(error)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it cannot be the name of a file"
        says = f"{uri}: {why}; correct the URI, or put it into the claim"
        yield Found(reason="SourceNotFound", message=says, kind=Kind.HOPELESS, fetching=True)


def _fetch(source: Source, into: Path | None, job: str) -> tuple[int, list[Found]]:
    """Bytes that were brought, and what there is to be said."""
    from flexmarl.fetch.errors import FetchError
    from flexmarl.fetch.fetching import copy_into, fetch
    from flexmarl.fetch.sources import Part
    from flexmarl.runtime.settings import variables

    given = variables(source.variables) if source.variables else {}
    root = Path(tempfile.gettempdir()) / CODE_CACHE if into else None
    try:
        found = fetch(source.uri, Part(source.part), root, given=given, reader=job)
        if into is not None:
            copy_into(found, into)
    except FetchError as error:
        return 0, [_of_fetch(error)]
    if not found.unchecked:
        return found.bytes, []
    says = f"{found.unchecked}; what the cache holds of it is used, which may be out of date"
    return found.bytes, [
        Found(reason="SourceUnchecked", message=says, kind=Kind.WARNING, fetching=True)
    ]


def _of_fetch(error: Exception) -> Found:
    from flexmarl.fetch.errors import FetchError

    assert isinstance(error, FetchError)
    kind = Kind.HOPELESS if error.hopeless else Kind.PASSING
    return Found(reason=error.reason.value, message=str(error), kind=kind, fetching=True)


def _states(plan: Preparation) -> Iterator[Found]:
    if not plan.states:
        return iter(())
    parameters = {
        one.policy: one.parameters or _parameters(one.uri, plan.job) for one in plan.states
    }
    shm = checks.space(Path(plan.shm))[0] if plan.shm and os.path.isdir(plan.shm) else 0
    run = checks.space(Path(plan.run))[1] if plan.run else 0
    return checks.states(plan.states, parameters, together=plan.together, shm=shm, run=run)


def _parameters(uri: str, job: str) -> int:
    from flexmarl.fetch.sources import Part, fetched, mounted

    if uri.startswith("pvc://"):
        return checks.parameters_in(mounted(uri))
    if uri.startswith("file:///"):
        return checks.parameters_in(Path(uri.removeprefix("file://")))
    folder = fetched(uri, Part.MODEL, job=job) if uri.startswith(("hf://", "s3://")) else None
    return checks.parameters_in(folder) if folder else 0
