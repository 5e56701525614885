"""What stands in a job's way, as reasons and sentences; pure.

A reason is one word for machines; the sentence names the object and says what to do. Of pods it is
found in `nodes`, `placing`, `containers` and `preparation`; what the API server refuses, here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from flexmarl.controller import preparation
from flexmarl.controller.containers import STORE, of_containers
from flexmarl.controller.names import EXPERIENCE, ORCHESTRATOR
from flexmarl.controller.nodes import of_ends, of_nodes
from flexmarl.controller.observed import Finding, Observed, Pod
from flexmarl.controller.owners import controller_of
from flexmarl.controller.placing import GATED, of_places
from flexmarl.controller.render.parts import PORT
from flexmarl.controller.words import shortened

SILENT, FULL = "OrchestratorSilent", "StoreFull"
INVALID, TOO_OLD = "InvalidSpec", "ControllerTooOld"
REFUSALS = {
    r"exceeded quota": (
        "QuotaExceeded",
        "raise the quota, or ask for fewer or smaller pods and claims",
    ),
    r"failed quota.*must specify": (
        "LimitsMissing",
        "give the containers that it names (preflight is an init container) requests and limits in "
        "roles.*.template, or the namespace a LimitRange with defaults",
    ),
    r"violates PodSecurity": (
        "PodSecurity",
        "mend roles.*.template, or the namespace's level",
    ),
    r"(maximum|minimum) [\w./-]+ usage per|limit to request ratio|or equal to \S+ limit": (
        "LimitRange",
        "ask in resources of roles.*.template for what the namespace's LimitRange allows",
    ),
    r"denied (the )?request": (
        "AdmissionDenied",
        "do as it says in roles.*.template, or ask whoever set it up for an exception",
    ),
}
"""In the API server's words -> a reason, and what to do."""


def find(seen: Observed) -> list[Finding]:
    """All of it, what matters most first; one finding per reason."""
    found: dict[str, Finding] = {}
    everything = chain(
        _of_spec(seen),
        seen.findings,
        of_nodes(seen),
        _of_orchestrator(seen),
        preparation.findings(seen),
        of_containers(seen),
        _of_store(seen),
        of_places(seen),
        of_ends(seen),
        _of_workloads(seen),
    )
    for finding in everything:
        found.setdefault(finding.reason, finding)
    return sorted(found.values(), key=lambda one: (not one.fatal, one.reason == GATED))


def _of_spec(seen: Observed) -> Iterator[Finding]:
    """What an earlier version has let run is not ended by a rule of this one."""
    if seen.problems:
        yield Finding(INVALID, "; ".join(seen.problems), fatal=not seen.ran)
    if seen.later:
        yield Finding(
            TOO_OLD,
            f"{'; '.join(seen.later)}: not known to this controller, which is older than the "
            "definition of MARLJob; upgrade FlexMARL's release. Until then the job goes on as it "
            "was made, and nothing of it is made or changed",
        )


def _of_orchestrator(seen: Observed) -> Iterator[Finding]:
    """It trains on, but nobody tells it anything."""
    asked = _orchestrator(seen)
    if seen.silence and asked is not None:
        yield Finding(
            SILENT,
            f"{asked.name} at {asked.ip}, port {PORT}, does not answer the controller "
            f"({shortened(seen.silence)}): it is not known how far the job is, no pool grows, and "
            "suspending loses the steps since the last checkpoint; let no NetworkPolicy, rule on "
            "egress or mesh stand between the two",
        )


def _of_store(seen: Observed) -> Iterator[Finding]:
    """What the orchestrator says of it."""
    said = seen.progress
    if said is None or seen.silence or _orchestrator(seen) is None:
        return
    # Where its service is not there, what keeps that one away is told.
    served = any(one.role == EXPERIENCE and one.ready and not one.deleting for one in seen.pods)
    which = "the store that spec.store names" if seen.own_store else "the installation's store"
    if said.store_away and served:
        yield Finding(
            STORE,
            f"{which} cannot be used ({shortened(said.store_away)}): the job waits, and goes on by "
            "itself; see whether the store runs, and whether the job's pods reach it",
        )
    elif said.store_full is not None:
        used, most = said.store_full
        more = (
            "give its server a larger maxmemory, or remove what else lies in it"
            if seen.own_store
            else "give it more (store.maxMemoryMib of the chart), or suspend other jobs"
        )
        yield Finding(
            FULL,
            f"{which} is full, {used} of {most} MiB are taken: what was played waits for room, and "
            f"nothing of it is lost; {more}",
        )


def _orchestrator(seen: Observed) -> Pod | None:
    """Who can be asked."""
    found = [one for one in seen.pods if one.role == ORCHESTRATOR and one.ready and one.ip]
    return found[-1] if found else None


def _of_workloads(seen: Observed) -> Iterator[Finding]:
    for workload in seen.workloads:
        if workload.trouble:
            yield refused(f"{workload.kind} {workload.name}", workload.trouble)


def no_gangs(api: str) -> Finding:
    return Finding(
        "GangUnknown",
        f"the cluster has no PodGroups of {api}, so no pod is started: switch that API on, or "
        "delete the job and create it anew with another gang.kind",
    )


def name_taken(what: str, found: Mapping[str, Any], job: str) -> Finding:
    """`found` has the name of an object that `job` needs, and is not its own."""
    owner = controller_of(found)
    mine = (owner.get("kind"), owner.get("name")) == ("MARLJob", job)
    if mine or "deletionTimestamp" in found["metadata"]:
        says = "is still there, of an earlier job of this name; it waits until that is gone"
    elif owner:
        says = f"is there already and belongs to {owner['kind']} {owner['name']}; delete that, or "
        says += "give this job another name"
    else:
        says = "is there already and belongs to nobody; delete it, or give the job another name"
    return Finding("NameTaken", f"{what} {says}")


def claim_differs(name: str, lacks: str) -> Finding:
    return Finding(
        "ClaimDiffers",
        f"PersistentVolumeClaim {name} was kept of an earlier job and {lacks}; delete it, or "
        f"create the job anew with spec.checkpoint.claim.name: {name}, which takes it as it is",
    )


def store_away(message: str) -> Finding:
    """Of the store that all jobs share."""
    return Finding(
        STORE,
        f"the store of the installation does not admit the job ({shortened(message)}); see whether "
        "it runs, whether the controller reaches it, and whether its Secret is right",
    )


def unavailable(message: str) -> Finding:
    """The API server did not do what it may do later."""
    said = shortened(message)
    return Finding("APIUnavailable", f"the job's objects cannot be written: {said}; tried again")


def broken(error: Exception) -> Finding:
    """A mistake of ours, or what nobody has foreseen."""
    said = shortened(f"{type(error).__name__}: {error}")
    return Finding(
        "ControllerFailed",
        f"the controller cannot do what the job needs ({said}) and tries again; its log says more",
    )


def refused(what: str, message: str) -> Finding:
    """The API server did not take an object."""
    said = shortened(message)
    for words, (reason, then) in REFUSALS.items():
        if re.search(words, message):
            return Finding(reason, f"{what}: {said}; {then}")
    then = "mend what it names, in roles.*.template or in the cluster; it is tried again"
    return Finding("CreateFailed", f"{what}: {said}; {then}")
