"""What the first containers of a job's pods say: findings, and two conditions; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from flexmarl.contracts.preparation import Found, Kind
from flexmarl.controller.names import EXPERIENCE
from flexmarl.controller.observed import Finding, Observed, Pod

Reason = tuple[str, str]
"""A word for machines, a sentence for people."""
FAILED = "Failed"
"""Phase of a pod."""


def findings(pods: Iterable[Pod]) -> Iterator[Finding]:
    """What keeps pods from starting. Hopeless is what a pod calls so: a source that is not there,
    is damaged or refuses the key, a URI that is none, shared memory that is too small."""
    for pod in current(pods):
        if pod.prepared:
            continue
        for found in _blocking(pod):
            text = f"{pod.name}: {found.message}"
            yield Finding(found.reason, text, fatal=found.kind is Kind.HOPELESS)


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
    return (False, ("Fetching", waiting)) if waiting else (True, ("Fetched", ""))


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
    names = sorted(pod.name for pod in pods if not done(pod))
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"waiting for {', '.join(names[:3])}{more}"
    return "" if len(pods) >= seen.wanted_pods > 0 else "waiting for pods to be made"
