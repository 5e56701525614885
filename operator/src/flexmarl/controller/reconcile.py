"""One look at one job: observe, decide, act, write the status once.

What is seen and what is applied decide everything; which event caused the look does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from flexmarl.contracts.cluster import CONTROLLER
from flexmarl.contracts.job import MARLJob
from flexmarl.controller import seeing
from flexmarl.controller.accounts import Accounts
from flexmarl.controller.again import SOON_SECONDS, next_look
from flexmarl.controller.apply import Applier
from flexmarl.controller.asking import Orchestrators, Unanswered
from flexmarl.controller.cache import Cache, Key, Objects
from flexmarl.controller.clock import overdue, seconds
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.errands import Errand, Errands
from flexmarl.controller.evidence import PATIENCE_SECONDS, Evidence
from flexmarl.controller.findings import broken, find, store_away, unavailable
from flexmarl.controller.known import Known
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Finding, Observed, Progress
from flexmarl.controller.owners import own
from flexmarl.controller.phase import FINAL, Phase, next_phase
from flexmarl.controller.plan import Plan, Wish, plan
from flexmarl.controller.questions import Questions
from flexmarl.controller.reading import document
from flexmarl.controller.render import WORKLOADS, group_of, render
from flexmarl.controller.render.parts import Subject
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.status import next_status, phase_of, troubled
from flexmarl.controller.writing import Statuses
from flexmarl.runtime.errors import UnavailableError

NEVER = float("inf")
TOLD_SECONDS = 5.0
"""What is refused for so long is told; so are objects, shortly, while others are deleted."""
WRITTEN_FIRST = (*FINAL, Phase.SUSPENDING)
"""What such a phase leads to is not to be taken back, so it is written down before."""

log = structlog.get_logger()


class Reconciler:
    def __init__(
        self,
        settings: ControllerSettings,
        cluster: Cluster,
        cache: Cache,
        orchestrators: Orchestrators,
    ) -> None:
        self._cluster, self._cache, self._orchestrators = cluster, cache, orchestrators
        self._managed_by = settings.managed_by
        self._installation = settings.installation()
        self._accounts = Accounts(settings, cluster)
        self._applier = Applier(cluster)
        self.errands = Errands()
        self._questions = Questions(cluster, settings.namespaces, self.errands)
        self._statuses = Statuses(cluster, cache)
        self._evidence = Evidence(cluster)
        self._jobs: dict[Key, Known] = {}

    async def look(self, key: Key) -> float:
        """At the job, and do what is to be done; when to look again even if nothing happens."""
        there = own(self._cache.objects(key))
        manifest = there.job
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            await self._gone(key)
            return NEVER
        if manifest["spec"].get("managedBy", CONTROLLER) != self._managed_by:
            return NEVER
        known = await self._known(key, manifest)
        known.led_by(seeing.leader(there, known.uid))
        said = known.read(manifest)
        job = said.job
        before: Manifest = manifest.get("status") or {}
        now = time.time()
        seen = seeing.observe(
            there,
            said,
            now=now,
            progress=known.progress,
            findings=known.findings,
            silence=known.silence,
        )
        seen = await self._questions.answered(key, known.uid, seen)
        phase, status, findings = _decided(before, seen, job)
        if phase in WRITTEN_FIRST and phase_of(before) is not phase:
            return now if await self._write(key, manifest, status, findings) else now + SOON_SECONDS
        todo = plan(status, seen, phase, manifest["spec"].get("ttlSecondsAfterFinished"))
        if todo.delete_job:
            await self._cluster.delete("MARLJob", key.namespace, key.name, known.uid)
            return NEVER
        failure: Exception | None = None
        try:
            await self._act(key, known, todo, job, there)
            known.failing = None
        except RefusedError as error:
            failure = error
            if error.status == 409:  # its Secret may be another's, which is read then
                self._accounts.forget(known.uid)
            known.failing = known.failing or now
            if now - known.failing > TOLD_SECONDS:
                known.findings = (unavailable(str(error)),)
        except Exception as error:  # the border: who asks about the job is told, not the log alone
            failure = error
            known.findings = (broken(error),)
        if known.findings != seen.findings:  # what was refused belongs to this status
            seen = replace(seen, findings=known.findings)
            phase, status, findings = _decided(before, seen, job)
        same = await self._write(key, manifest, status, findings)
        if failure is not None:
            raise failure
        waits = todo.save or todo.evidence or self._applier.awaits(key, there)
        return min(todo.again, next_look(seen, same=same, waits=waits))

    def suspends(self, key: Key) -> bool:
        """Whether it waits for its orchestrator to save."""
        job = self._cache.objects(key).job
        return job is not None and phase_of(job.get("status") or {}) is Phase.SUSPENDING

    def asks(self, key: Key) -> tuple[str, str, str] | None:
        """Uid, address and token to ask the job's orchestrator with; None: there is none."""
        job, known = self._cache.objects(key).job, self._jobs.get(key)
        if known is None or known.leader is None or job is None:
            return None
        over = phase_of(job.get("status") or {}) in FINAL
        if over or job["metadata"]["uid"] != known.uid:
            return None
        token = self._accounts.token(known.uid)
        return (known.uid, known.leader, token) if token else None

    def tell(self, key: Key, said: Progress | Unanswered) -> bool:
        """What the orchestrator said, or why it did not; whether that is news."""
        known = self._jobs.get(key)
        return known is not None and known.hears(said)

    def compare(self, kind: str, listed: list[Manifest]) -> set[Key]:
        """With all objects of a kind that nobody watches: whose are not as they were applied."""
        return self._applier.compare(kind, listed)

    async def sweep(self) -> set[Key]:
        """Remove from the store what is left of jobs that are gone; those that are there and that
        it has lost are to be looked at. UnavailableError."""
        lost = await self._accounts.sweep(self._living)
        return {key for key, known in self._jobs.items() if known.uid in lost}

    def _living(self) -> Iterator[Manifest]:
        for key in self._cache.jobs():
            job = self._cache.objects(key).job
            if job is not None and phase_of(job.get("status") or {}) not in FINAL:
                yield job

    async def _known(self, key: Key, manifest: Manifest) -> Known:
        uid = manifest["metadata"]["uid"]
        known = self._jobs.get(key)
        if known is not None and known.uid != uid:  # another job by this name
            await self._gone(key)
        return self._jobs.setdefault(key, Known(uid))

    async def _gone(self, key: Key) -> None:
        self._statuses.forget(key)
        self._applier.forget(key)
        known = self._jobs.pop(key, None)
        if known is not None:
            self._accounts.forget(known.uid)
            self._evidence.forget(known.uid)
            self._questions.forget(known.uid)
            await self._orchestrators.forget(known.uid)

    async def _act(
        self, key: Key, known: Known, todo: Plan, job: MARLJob | None, there: Objects
    ) -> None:
        """RefusedError: it is to be tried again."""
        assert there.job is not None
        if todo.evidence and not self._evidence.settled(known.uid):
            ended = seconds(there.job["status"]["completionTime"])
            last_try = time.time() > ended + PATIENCE_SECONDS
            keep = partial(self._evidence.keep, key, known.uid, there, last_try=last_try)
            self.errands.begin(Errand.EVIDENCE, key, keep)
            return  # its pods stay until then
        if todo.save:
            self.errands.begin(Errand.SAVE, key, partial(self._save, known, there.job))
        if todo.find:
            await self._applier.find(key)
        if todo.anew:
            await self._applier.again(key, there)
        elif job is not None and todo.wish is Wish.ALL:
            await self._bring_about(key, known, job, there)
        elif todo.wish is Wish.KEPT:
            await self._clear(key, known, there)
        elif there.of(*WORKLOADS) and await self._let_in(known, there) is not None:
            known.findings = ()

    async def _bring_about(self, key: Key, known: Known, job: MARLJob, there: Objects) -> None:
        assert there.job is not None
        admitted = await self._let_in(known, there)
        if admitted is None:
            return
        token, url = admitted
        subject = Subject(job, known.uid, document(there.job), token, url)
        # While the orchestrator says nothing, pools stay as large as they are.
        wanted = seeing.pools(there.of("StatefulSet"))
        if known.progress is not None:
            wanted |= known.progress.wanted
        # All that a job's objects are rendered from and that may change while it lives.
        generation = there.job["metadata"].get("generation", 1)
        source = known.uid, generation, token, url, tuple(sorted(wanted.items()))
        if self._applier.holds(key, source, there):
            known.findings = ()
            return
        manifests = render(subject, self._installation, wanted)
        found = await self._applier.apply(key, manifests, there, _shapes_pods(job))
        known.findings = tuple(found)
        if not found:
            self._applier.remember(key, source, manifests)

    async def _let_in(self, known: Known, there: Objects) -> tuple[str, str] | None:
        """Its token, and where the installation's store lets it in, if it has none of its own;
        None: that does not, which is told."""
        assert there.job is not None
        token, password = await self._accounts.credentials(there.job)
        if seeing.own_store(there.job["spec"]):
            return token, ""
        try:
            lost = seeing.lost_its_store(there)
            return token, await self._accounts.store(there.job, password, anew=lost)
        except UnavailableError as error:
            known.findings = (store_away(str(error)),)
            return None

    async def _clear(self, key: Key, known: Known, there: Objects) -> None:
        """Nothing is rendered: what cannot be made can still be taken away."""
        assert there.job is not None
        await self._applier.clear(key, known.uid, there, group_of(there.job))
        known.findings, known.progress = (), None
        self._accounts.forget(known.uid)
        await self._orchestrators.forget(known.uid)

    async def _save(self, known: Known, job: Manifest) -> bool:
        """When it is done the orchestrator says so to who asks how far it is."""
        token, _ = await self._accounts.credentials(job)
        if known.leader is not None:
            said = await self._orchestrators.save(known.uid, known.leader, token)
            if said is not None:
                log.warning("cannot have it saved", job=job["metadata"]["name"], why=said.why)
        return False

    async def _write(
        self, key: Key, manifest: Manifest, status: Manifest, findings: list[Finding]
    ) -> bool:
        """False: it is to be looked at again."""
        trouble = troubled(status, findings)
        return await self._statuses.write(key, manifest, status, trouble=trouble)


def _decided(
    before: Mapping[str, Any], seen: Observed, job: MARLJob | None
) -> tuple[Phase, Manifest, list[Finding]]:
    """Phase, status, and what stands in the way."""
    findings = find(seen)
    phase = next_phase(phase_of(before), seen, findings, overdue=overdue(before, seen))
    status = next_status(before, seen, findings, phase, None if job is None else job.spec)
    return phase, status, findings


def _shapes_pods(job: MARLJob) -> bool:
    """Whether users have a say in what their pods look like."""
    roles = job.spec.roles
    named = (roles.orchestrator, roles.worker, roles.engine, roles.trainer, roles.experience)
    return bool(job.spec.pools) or any(role.template for role in named)
