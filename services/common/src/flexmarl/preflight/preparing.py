"""All that a pod does before its process starts, in the order in which it costs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from flexmarl.contracts.preparation import Found, Kind, Preparation, Report, Source
from flexmarl.preflight import checks, reach

CODE_CACHE = "flexmarl-code"
"""In the folder of temporary files, not in the cache: a branch is to be read anew by each pod."""


def prepare(plan: Preparation, store_url: str = "") -> Report:
    """What was found and brought. Nothing is fetched for a pod that cannot start anyway."""
    began = time.monotonic()
    findings = [*_looked_at(plan, store_url or plan.store_url)]
    brought = 0
    if not blocking(findings):
        for source in (*([plan.code] if plan.code else []), *plan.sources):
            into = Path(plan.into) if source is plan.code else None
            bytes_, found = _fetch(source, into)
            brought += bytes_
            findings += found
            if found:
                break
        else:
            findings += _states(plan)
    sources = len(plan.sources) + bool(plan.code)
    seconds = round(time.monotonic() - began, 3)
    return Report(findings=findings, sources=sources, bytes=brought, seconds=seconds)


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
    for path in source.iterdir():
        if not path.name.startswith(".."):  # the kubelet's own links
            shutil.copyfile(path, into / path.name)


def _mounted(uri: str) -> Iterator[Found]:
    from flexmarl.fetch.sources import mounted

    path = mounted(uri)
    if not path.exists():
        says = f"{uri}: the claim has no such file or folder; correct the URI, or put it there"
        yield Found(reason="SourceNotFound", message=says, kind=Kind.HOPELESS, fetching=True)


def _fetch(source: Source, into: Path | None) -> tuple[int, list[Found]]:
    from flexmarl.fetch.errors import FetchError
    from flexmarl.fetch.fetching import copy_into, fetch
    from flexmarl.fetch.sources import Part
    from flexmarl.runtime.settings import variables

    given = variables(source.variables) if source.variables else {}
    root = Path(tempfile.gettempdir()) / CODE_CACHE if into else None
    try:
        found = fetch(source.uri, Part(source.part), root, given=given)
        if into is not None:
            copy_into(found, into)
    except FetchError as error:
        return 0, [_of_fetch(error)]
    return found.bytes, []


def _of_fetch(error: Exception) -> Found:
    from flexmarl.fetch.errors import FetchError

    assert isinstance(error, FetchError)
    kind = Kind.HOPELESS if error.hopeless else Kind.PASSING
    return Found(reason=error.reason.value, message=str(error), kind=kind, fetching=True)


def _states(plan: Preparation) -> Iterator[Found]:
    if not plan.states:
        return iter(())
    parameters = {one.policy: one.parameters or _parameters(one.uri) for one in plan.states}
    shm = checks.space(Path(plan.shm))[0] if plan.shm and os.path.isdir(plan.shm) else 0
    run = checks.space(Path(plan.run))[1] if plan.run else 0
    return checks.states(plan.states, parameters, together=plan.together, shm=shm, run=run)


def _parameters(uri: str) -> int:
    from flexmarl.fetch.sources import Part, fetched, mounted

    if uri.startswith("pvc://"):
        return checks.parameters_in(mounted(uri))
    if uri.startswith("file:///"):
        return checks.parameters_in(Path(uri.removeprefix("file://")))
    folder = fetched(uri, Part.MODEL) if uri.startswith(("hf://", "s3://")) else None
    return checks.parameters_in(folder) if folder else 0
