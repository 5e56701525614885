"""One look at one job: observe, decide, act, write the status once.

What is seen and what is applied decide everything; which event caused the look does not count.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from flexmarl.contracts.cluster import CONTROLLER
from flexmarl.contracts.job import MARLJob
from flexmarl.controller import evidence
from flexmarl.controller import observed as seeing
from flexmarl.controller.apply import Applier
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Cache, Key, Objects
from flexmarl.controller.cluster import Cluster, RefusedError
from flexmarl.controller.findings import INSUFFICIENT, find
from flexmarl.controller.metrics import Series
from flexmarl.controller.names import EXPERIENCE, MADE_BY, ORCHESTRATOR, STEPS, Manifest, child
from flexmarl.controller.observed import Finding, JobState, Observed, Pod, Progress
from flexmarl.controller.phase import FINAL, Phase, next_phase
from flexmarl.controller.plan import Wish, plan
from flexmarl.controller.reading import document, read
from flexmarl.controller.render import WORKLOADS, group, kept, render
from flexmarl.controller.render.parts import Subject
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.status import next_status, overdue, phase_of
from flexmarl.controller.store import JobUsers, RedisError, url_for
from flexmarl.controller.troubles import Troubles

NEVER = float("inf")
AGAIN_SECONDS = 10.0
"""After so long pods that lack are looked for again: that they cannot be made is no change."""

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
        self._managed_by, self._store_url = settings.managed_by, settings.store_url
        self._installation = settings.installation()
        self._users: JobUsers | None = None
        if settings.store_url:
            installation = settings.installation_uid
            self._users = JobUsers(settings.store_url, installation, settings.namespaces)
        self._applier = Applier(cluster, self._installation.made_by)
        self._troubles = Troubles(cluster, settings.namespaces)
        self._series = Series()
        self._tokens: dict[str, tuple[str, str]] = {}
        """By uid of the job: token of its processes, password of its user in the store."""
        self._admitted: set[str] = set()
        self._progress: dict[Key, Progress] = {}
        self._findings: dict[Key, tuple[Finding, ...]] = {}
        """Of what could not be applied at the last look."""

    async def look(self, key: Key) -> float:
        """At the job, and do what is to be done; when to look again even if nothing happens."""
        there = self._cache.objects(key)
        manifest = there.job
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            await self._gone(key, manifest)
            return NEVER
        if manifest["spec"].get("managedBy", CONTROLLER) != self._managed_by:
            return NEVER
        job, problems = read(manifest)
        before: Manifest = manifest.get("status") or {}
        seen = await self._asked(key, self._observe(key, there, job, problems))
        findings = find(seen)
        late = overdue(before, seen)
        phase = next_phase(phase_of(before), seen, findings, overdue=late)
        if phase in FINAL and phase_of(before) not in FINAL:
            # First it is written down, with what the pods said last; then they go.
            await self._write(key, manifest, next_status(before, seen, findings, phase, _spec(job)))
            return seen.now
        status = next_status(before, seen, findings, phase, _spec(job))
        todo = plan(status, seen, phase, _ttl(job))
        if todo.delete_job:
            await self._cluster.delete("MARLJob", key.namespace, key.name)
            return NEVER
        uid = manifest["metadata"]["uid"]
        if todo.evidence:
            await evidence.keep(self._cluster, key, uid, there)
        if todo.save:
            await self._save(manifest, there)
        if job is not None and todo.wish is Wish.ALL:
            await self._bring_about(key, job, manifest, there)
        elif todo.wish is Wish.KEPT:
            await self._clear(key, job, manifest, there)
        if self._findings.get(key, ()) != seen.findings:  # what was refused belongs to this status
            seen = replace(seen, findings=self._findings.get(key, ()))
            findings = find(seen)
            phase = next_phase(phase_of(before), seen, findings, overdue=late)
            status = next_status(before, seen, findings, phase, _spec(job))
        await self._write(key, manifest, status)
        lacking = any(one.silent or one.trouble for one in seen.workloads)
        return min(todo.again, seen.now + AGAIN_SECONDS) if lacking else todo.again

    def asks(self, key: Key) -> tuple[str, str, str] | None:
        """Uid, address and token to ask the job's orchestrator with; None: there is none."""
        there = self._cache.objects(key)
        if there.job is None or phase_of(there.job.get("status") or {}) in FINAL:
            return None
        uid = there.job["metadata"]["uid"]
        pod, known = _leader(there), self._tokens.get(uid)
        return (uid, pod.ip, known[0]) if pod and known else None

    def tell(self, key: Key, progress: Progress) -> bool:
        """What the orchestrator said; whether that is news."""
        news = self._progress.get(key) != progress
        self._progress[key] = progress
        return news

    def compare(self, kind: str, listed: list[Manifest]) -> None:
        """With all objects of a kind that nobody watches."""
        self._applier.compare(kind, listed)

    async def sweep(self) -> None:
        """Remove from the store what is left of jobs that are gone."""
        if self._users is None:
            return
        live = set()
        for key in self._cache.jobs():
            job = self._cache.objects(key).job
            if job is not None and phase_of(job.get("status") or {}) not in FINAL:
                live.add(self._users.user(key.namespace, key.name, job["metadata"]["uid"]))
        known = await self._users.users()
        self._admitted &= known  # a server that lost its users gets them again
        if gone := known - live:
            await self._users.forget(gone)
            log.info("forgotten in the store", users=sorted(gone))

    def _observe(
        self, key: Key, there: Objects, job: MARLJob | None, problems: tuple[str, ...]
    ) -> Observed:
        assert there.job is not None
        now = time.time()
        metadata, spec = there.job["metadata"], there.job["spec"]
        leader = there.children.get(("Job", child(key.name, "orchestrator")))
        state, reason = seeing.job_state(leader)
        limits = {} if job is None else _limits(job)
        return Observed(
            now=now,
            name=key.name,
            generation=metadata.get("generation", 1),
            created=seeing.seconds(metadata.get("creationTimestamp")),
            suspend=bool(spec.get("suspend")),
            suspend_timeout=float(spec.get("suspendTimeout", 300)),
            deadline=spec.get("activeDeadlineSeconds"),
            problems=problems,
            orchestrator=state,
            orchestrator_reason=reason,
            pods=tuple(seeing.pod(one) for one in there.of("Pod")),
            workloads=tuple(
                seeing.workload(one, MADE_BY, STEPS, now) for one in there.of(*WORKLOADS)
            ),
            progress=self._progress.get(key) if state is JobState.ACTIVE else None,
            findings=self._findings.get(key, ()),
            limits=limits,
        )

    async def _asked(self, key: Key, seen: Observed) -> Observed:
        """With what only the API server knows of pods that lack or find no node."""
        if any(one.silent for one in seen.workloads):
            said = await self._troubles.failures(key.namespace)
            workloads = (
                replace(one, trouble=said.get(one.uid, "")) if one.silent else one
                for one in seen.workloads
            )
            seen = replace(seen, workloads=tuple(workloads))
        if any(INSUFFICIENT.search(pod.unschedulable) for pod in seen.pods):
            seen = replace(seen, rooms=await self._troubles.rooms())
        return seen

    async def _bring_about(
        self, key: Key, job: MARLJob, manifest: Manifest, there: Objects
    ) -> None:
        try:
            subject = await self._subject(job, manifest, there)
        except (RedisError, OSError) as error:
            text = (
                f"the store of the installation does not admit the job ({error}); see whether its "
                "pod runs and its Secret is right"
            )
            self._findings[key] = (Finding("StoreUnreachable", text),)
            return
        # While the orchestrator says nothing, pools stay as large as they are.
        wanted = seeing.pools(there.of("StatefulSet"))
        if key in self._progress:
            wanted |= self._progress[key].wanted
        # All that a job's objects are rendered from and that may change while it lives.
        generation = manifest["metadata"].get("generation", 1)
        source = subject.uid, generation, subject.token, subject.store_url, _frozen(wanted)
        if self._applier.holds(key, source, there):
            return
        manifests = render(subject, self._installation, wanted)
        found = await self._applier.apply(key, manifests, there, _has_templates(job))
        self._findings[key] = tuple(found)
        if not found:
            self._applier.remember(key, source, manifests)

    async def _clear(
        self, key: Key, job: MARLJob | None, manifest: Manifest, there: Objects
    ) -> None:
        stays: list[Manifest] = []
        gang: list[Manifest] = []
        uid = manifest["metadata"]["uid"]
        if job is not None:
            subject = Subject(job, uid, {}, "", "")
            stays, gang = kept(subject, self._installation), group(subject)
        await self._applier.keep_only(key, uid, stays, there, gang)
        self._findings.pop(key, None)
        self._progress.pop(key, None)
        self._tokens.pop(uid, None)
        # The password is gone with the Secret: whoever starts again gets another.
        if self._users is not None:
            self._admitted.discard(self._users.user(key.namespace, key.name, uid))
        await self._orchestrators.forget(uid)

    async def _save(self, manifest: Manifest, there: Objects) -> None:
        uid, pod = manifest["metadata"]["uid"], _leader(there)
        if pod is not None:
            token, _ = await self._credentials(manifest)
            if not await self._orchestrators.save(uid, pod.ip, token):
                log.warning("the orchestrator does not answer", job=manifest["metadata"]["name"])

    async def _subject(self, job: MARLJob, manifest: Manifest, there: Objects) -> Subject:
        metadata = manifest["metadata"]
        uid, where = metadata["uid"], (metadata["namespace"], metadata["name"])
        token, password = await self._credentials(manifest)
        url = ""
        own = job.spec.store.url or job.spec.store.secret_ref
        if self._users is not None and not own:
            user = self._users.user(*where, uid)
            if user not in self._admitted or _lost_its_store(there):
                await self._users.admit(*where, uid, password)
                self._admitted.add(user)
            url = url_for(self._store_url, user, password)
        return Subject(job, uid, document(manifest), token, url)

    async def _credentials(self, manifest: Manifest) -> tuple[str, str]:
        """Those of its Secret, or new ones."""
        metadata = manifest["metadata"]
        uid = metadata["uid"]
        if uid not in self._tokens:
            name = child(metadata["name"], "job")
            found = await self._cluster.get("Secret", metadata["namespace"], name)
            data: dict[str, Any] = (found or {}).get("data") or {}
            known = {key: base64.b64decode(value).decode() for key, value in data.items()}
            password = known.get("store-password") or secrets.token_urlsafe(24)
            self._tokens[uid] = known.get("token") or secrets.token_urlsafe(24), password
        return self._tokens[uid]

    async def _write(self, key: Key, manifest: Manifest, status: Manifest) -> None:
        self._series.say(key, status)
        before: Manifest = manifest.get("status") or {}
        if status == {key: value for key, value in before.items() if value is not None}:
            return
        try:
            written = await self._cluster.write_status(manifest, status)
        except RefusedError as error:
            if error.status in (404, 409):  # the job is gone, or is another one by now
                return
            raise
        self._cache.written(written)  # not to be done again until the watch brings it
        if any(status.get(name) != before.get(name) for name in ("phase", "reason")):
            log.info("job", **_said(key, status))
            await self._event(manifest, status)

    async def _event(self, manifest: Manifest, status: Manifest) -> None:
        """A transition, for `kubectl describe`."""
        metadata, now = manifest["metadata"], time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}Z"
        bad = status["phase"] == Phase.FAILED.value
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{int(now * 1e6):x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": manifest["apiVersion"],
                "kind": "MARLJob",
                **{name: metadata[name] for name in ("name", "namespace", "uid")},
            },
            "type": "Warning" if bad else "Normal",
            "reason": status["reason"] or status["phase"],
            "message": f"{status['phase']}: {status['message']}"[:1000],
            "source": {"component": "flexmarl"},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._cluster.create(event)
        except RefusedError as error:
            log.debug("no event", error=str(error))

    async def _gone(self, key: Key, manifest: Manifest | None) -> None:
        self._series.forget(key)
        self._applier.forget(key)
        self._findings.pop(key, None)
        self._progress.pop(key, None)
        if manifest is not None:
            uid = manifest["metadata"]["uid"]
            self._tokens.pop(uid, None)
            await self._orchestrators.forget(uid)


def _spec(job: MARLJob | None) -> Any:
    return None if job is None else job.spec


def _ttl(job: MARLJob | None) -> float | None:
    return None if job is None else job.spec.ttl_seconds_after_finished


def _limits(job: MARLJob) -> dict[str, int]:
    roles = job.spec.roles
    return {
        ORCHESTRATOR: roles.orchestrator.restart_policy.max,
        "rollout-worker": roles.worker.restart_policy.max,
        "engine": roles.engine.restart_policy.max,
        "trainer": roles.trainer.restart_policy.max,
        "experience": roles.experience.restart_policy.max,
    }


def _frozen(wanted: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(wanted.items()))


def _lost_its_store(there: Objects) -> bool:
    """Whether the service in front of the store ended and is not back: it may not be admitted."""
    pods = [seeing.pod(one) for one in there.of("Pod")]
    return any(pod.role == EXPERIENCE and pod.ended and not pod.ready for pod in pods)


def _has_templates(job: MARLJob) -> bool:
    roles = job.spec.roles
    named = (roles.orchestrator, roles.worker, roles.engine, roles.trainer, roles.experience)
    return any(role.template for role in named) or any(pool.template for pool in job.spec.pools)


def _leader(there: Objects) -> Pod | None:
    """The pod of the orchestrator that can be asked."""
    pods = [seeing.pod(one) for one in there.of("Pod")]
    ready = [pod for pod in pods if pod.role == ORCHESTRATOR and pod.ready and not pod.deleting]
    return ready[-1] if ready else None


def _said(key: Key, status: Manifest) -> dict[str, str]:
    what = {name: str(status.get(name, "")) for name in ("phase", "reason", "message")}
    return {"namespace": key.namespace, "name": key.name, **what}
