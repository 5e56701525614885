"""What the first containers of a job's pods say: findings, and two conditions; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from flexmarl.contracts.preparation import Fetching, Found, Kind
from flexmarl.controller.names import EXPERIENCE
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.controller.words import named

Reason = tuple[str, str]
"""A word for machines, a sentence for people."""
FAILED = "Failed"
"""Phase of a pod."""
KEYS = tuple(each.name for each in fields(Fetching))
FETCHING_SECONDS = 12.0
"""After so long a first container has said how far it is."""


def findings(seen: Observed) -> Iterator[Finding]:
    """What keeps pods from starting. Hopeless is what a pod calls so: a source that is not there,
    is damaged or refuses the key, a URI that is none, shared memory that is too small. That ends no
    job that has run: its other pods have what they need."""
    for pod in current(seen.pods):
        if pod.prepared:
            continue
        for found in _blocking(pod):
            hopeless = found.kind is Kind.HOPELESS
            goes_on = "; it goes on trying" if hopeless and seen.ran else ""
            text = f"{pod.name}: {found.message}{goes_on}"
            yield Finding(found.reason, text, fatal=hopeless and not seen.ran)


def current(pods: Iterable[Pod]) -> list[Pod]:
    """Without those that a later one of their role has got further than."""
    pods = [pod for pod in pods if not pod.deleting]
    further = {pod.role for pod in pods if pod.prepared and pod.phase != FAILED}
    return [pod for pod in pods if pod.phase != FAILED or pod.role not in further]


def fetched(seen: Observed) -> tuple[bool, Reason]:
    """Of ModelsFetched: whether every pod has what it reads, and why not."""
    for pod in current(seen.pods):
        for found in _blocking(pod):
            if found.fetching and not pod.prepared:
                return False, (found.reason, f"{pod.name}: {found.message}")
        said = pod.waiting_message
        if not pod.prepared and pod.role != EXPERIENCE and "secret" in said.lower():
            return False, ("SecretMissing", f"{pod.name}: {said}; create the Secret")
    waiting = _waiting(seen, lambda pod: pod.prepared)
    far = "; ".join(
        f"{pod.name}: {how}"
        for pod in current(seen.pods)
        if not pod.prepared and (how := seen.fetches.get(pod.uid))
    )
    text = f"{waiting} ({far})" if far else waiting
    return (False, ("Fetching", text)) if waiting else (True, ("Fetched", ""))


def asked(seen: Observed) -> list[Pod]:
    """Those whose fetching is worth a question: the first of those that are told to be waited for,
    once they take longer than most."""
    since = seen.now - FETCHING_SECONDS
    if not any(0 < pod.preparing_since < since for pod in seen.pods):
        return []
    waiting = [pod for pod in current(seen.pods) if not pod.prepared]
    long = [pod for pod in waiting if 0 < pod.preparing_since < since]
    return sorted(long, key=lambda pod: pod.name)[:3]


def how_far(log: bytes) -> str:
    """What the end of a first container's log says of its fetching; empty: nothing."""
    for line in reversed(log.decode(errors="replace").splitlines()):
        try:
            said = json.loads(line)
            match said["event"]:
                case Fetching.EVENT:
                    return _shown(Fetching(**{key: said[key] for key in KEYS}))
                case Fetching.WAITING:
                    return "another pod fetches the same"
                case Fetching.INTERRUPTED:
                    return f"{said['uri']} was interrupted: {said['why']}; it is tried again"
        except (ValueError, KeyError, TypeError):
            continue  # of another process, or cut
    return ""


def _shown(found: Fetching) -> str:
    gib = found.of_mib >= 1 << 10
    scale, unit = (1 << 10, "GiB") if gib else (1, "MiB")
    done, total = (
        f"{mib / scale:.1f}" if gib else str(mib) for mib in (found.done_mib, found.of_mib)
    )
    return f"{done} of {total} {unit} of {found.uri}, {found.mib_per_second:g} MiB/s"


def passed(seen: Observed) -> tuple[bool, Reason]:
    """Of PreflightPassed: whether every pod can do with what it was given; warnings, too."""
    warning: Reason | None = None
    for pod in current(seen.pods):
        for found in pod.report.findings if pod.report else ():
            said = found.reason, f"{pod.name}: {found.message}"
            if found.kind is Kind.WARNING:
                warning = warning or said
            elif not found.fetching and not pod.prepared:
                return False, said
    if warning is not None:
        return False, warning
    waiting = _waiting(seen, lambda pod: pod.prepared or pod.report is not None)
    return (False, ("Checking", waiting)) if waiting else (True, ("Passed", ""))


def _blocking(pod: Pod) -> list[Found]:
    found = pod.report.findings if pod.report else []
    return [one for one in found if one.kind is not Kind.WARNING]


def _waiting(seen: Observed, done: Callable[[Pod], bool]) -> str:
    """Who is waited for; empty when every pod that is wanted is done."""
    pods = current(seen.pods)
    if waiting := [pod for pod in pods if not done(pod)]:
        return f"waiting for {named(waiting)}"
    return "" if len(pods) >= seen.wanted_pods > 0 else "waiting for pods to be made"
