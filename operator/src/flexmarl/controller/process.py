"""`flexmarl serve controller`: watches, and looks at every job about which something is new.

Watches only name a job to look at. A resync looks at all of them, and mends what a watch may have
missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import kopf
import structlog
from aiohttp import web
from prometheus_client import start_http_server
from pydantic import ValidationError

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import WATCHED, Cache, Key
from flexmarl.controller.cluster import Cluster, RefusedError, connected
from flexmarl.controller.metrics import ERRORS, RECONCILES
from flexmarl.controller.names import JOB_LABEL, Manifest
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.store import RedisError
from flexmarl.controller.watching import kopf_settings, watching
from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.logging import configure
from flexmarl.runtime.main import hopeless_exit, misconfigured
from flexmarl.runtime.process import run_until_signalled

LONGEST_PAUSE = 60.0
"""Between two tries of a look that fails."""
ASKED_AT_ONCE = 32

log = structlog.get_logger()


class Wakes:
    """Which jobs are to be looked at, and when: each once, however often it was named."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    def wake(self, key: Key, delay: float = 0) -> None:
        at = time.monotonic() + delay
        if at < self._due.get(key, float("inf")):
            self._due[key] = at
            self._changed.set()

    async def next(self) -> Key:
        """A job that is due and that nobody looks at; `done` must follow."""
        while True:
            now = time.monotonic()
            free = {key: at for key, at in self._due.items() if key not in self._busy}
            key = min(free, key=lambda one: free[one], default=None)
            if key is not None and free[key] <= now:
                del self._due[key]
                self._busy.add(key)
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(None if key is None else free[key] - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        self._changed.set()


class Controller:
    def __init__(
        self, settings: ControllerSettings, cluster: Cluster, asker: Orchestrators
    ) -> None:
        self._settings, self._cluster, self._asker = settings, cluster, asker
        self._cache, self._wakes = Cache(), Wakes()
        self._reconciler = Reconciler(settings, cluster, self._cache, asker)
        self._pauses: dict[Key, float] = {}
        self._synced = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether the resync still goes round."""
        return time.monotonic() - self._synced < 3 * self._settings.resync_seconds

    def event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Of a watch."""
        change = self._cache.drop if event["type"] == "DELETED" else self._cache.put
        key = change(kind, event["object"])
        if key is not None:
            self._wakes.wake(key)

    async def work(self) -> None:
        """Look at jobs, one after the other, until cancelled."""
        while True:
            key = await self._wakes.next()
            try:
                with RECONCILES.time():
                    again = await self._reconciler.look(key)
            except Exception as error:  # the border: one job's trouble is not another's
                ERRORS.labels(type(error).__name__).inc()
                pause = min(LONGEST_PAUSE, 2 * self._pauses.get(key, 0.25))
                self._pauses[key] = pause
                log.exception("look failed", job=f"{key.namespace}/{key.name}", again=pause)
                self._wakes.wake(key, pause)
            else:
                self._pauses.pop(key, None)
                if again != float("inf"):
                    self._wakes.wake(key, max(0.05, again - time.time()))
            finally:
                self._wakes.done(key)

    async def resync(self) -> None:
        """Until cancelled, see to it that nothing was missed, and look at everything."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                for kind in WATCHED:
                    await self._compare(kind)
                for kind in UNWATCHED:
                    self._reconciler.compare(kind, await self._listed(kind, metadata_only=True))
                await self._sweep()
                for key in self._cache.jobs():
                    self._wakes.wake(key)
                self._synced = time.monotonic()
            except Exception:  # the border: the health check tells if it goes on
                log.exception("resync failed")

    async def _sweep(self) -> None:
        try:
            await self._reconciler.sweep()
        except (RedisError, OSError) as error:
            log.warning("the store does not answer", error=str(error))

    async def ask(self) -> None:
        """Until cancelled, ask orchestrators how far they are."""
        gate = asyncio.Semaphore(ASKED_AT_ONCE)

        async def one(key: Key) -> None:
            where = self._reconciler.asks(key)
            if where is None:
                return
            async with gate:
                said = await self._asker.progress(*where)
            if said is not None and self._reconciler.tell(key, said):
                self._wakes.wake(key)

        while True:
            await asyncio.sleep(self._settings.progress_seconds)
            await asyncio.gather(*(one(key) for key in self._cache.jobs()))

    async def _compare(self, kind: str) -> None:
        lost, newer = self._cache.resync(kind, await self._listed(kind, metadata_only=True))
        for key in lost:
            self._wakes.wake(key)
        if newer:
            for item in await self._listed(kind):
                self._cache.put(kind, item)

    async def _listed(self, kind: str, *, metadata_only: bool = False) -> list[Manifest]:
        """All of it that is ours."""
        labels = "" if kind == "MARLJob" else JOB_LABEL
        everywhere: list[str | None] = [*self._settings.namespaces] or [None]
        found = []
        for namespace in everywhere:
            found += await self._cluster.listed(
                kind, namespace, labels=labels, metadata_only=metadata_only
            )
        return found


async def body(settings: ControllerSettings) -> None:
    """Serve until cancelled."""
    async with connected() as cluster, Orchestrators() as asker:
        settings = await _identified(settings, cluster)
        controller = Controller(settings, cluster, asker)
        registry = kopf.OperatorRegistry()
        watching(registry, controller.event)
        if settings.health_port:
            await _serve_health(controller, settings.health_port)
        async with asyncio.TaskGroup() as group:
            ours = [group.create_task(controller.work()) for _ in range(settings.workers)]
            ours += [group.create_task(controller.resync()), group.create_task(controller.ask())]
            log.info("watching", namespaces=settings.namespaces or "all")
            await kopf.operator(
                registry=registry,
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not settings.namespaces,
                namespaces=settings.namespaces,
            )
            for task in ours:  # a signal comes to kopf, which takes its handler, and ends it alone
                task.cancel()


async def _identified(settings: ControllerSettings, cluster: Cluster) -> ControllerSettings:
    """With what tells this installation from others; InvalidJobError: it may not be read."""
    if settings.installation_uid or not settings.store_url:
        return settings
    name = settings.namespace or "default"
    try:
        found = await cluster.get("Namespace", None, name)
    except RefusedError as error:
        if error.status != 403:
            raise
        raise InvalidJobError(
            f"{error}; its uid tells this installation's users in the store from those of others: "
            "grant it, or give one in FLEXMARL_INSTALLATION_UID"
        ) from error
    if found is None:
        raise InvalidJobError(f"FLEXMARL_NAMESPACE: there is no namespace {name!r}")
    return settings.model_copy(update={"installation_uid": found["metadata"]["uid"]})


async def _serve_health(controller: Controller, port: int) -> None:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(status=200 if controller.healthy else 503)

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()


def main() -> None:
    with hopeless_exit():
        try:
            settings = ControllerSettings()
        except ValidationError as error:
            raise misconfigured(error, "FLEXMARL_") from None
        configure("controller", settings.log_format, settings.log_level)
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it tells of every event
        if settings.metrics_port:
            start_http_server(settings.metrics_port)
        asyncio.run(run_until_signalled(lambda: body(settings)))
