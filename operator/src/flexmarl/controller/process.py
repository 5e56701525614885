"""`flexmarl serve controller`: watches, and looks at every job about which something is new.

Watches only name a job to look at, once everything there is was read. A resync mends what a watch
may have missed, and names those jobs, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import kopf
import structlog
from aiohttp import web
from pydantic import ValidationError

from flexmarl.controller.apply import UNWATCHED
from flexmarl.controller.asking import Orchestrators
from flexmarl.controller.cache import Cache, Key
from flexmarl.controller.cluster import Cluster, RefusedError, connected
from flexmarl.controller.errands import MOST
from flexmarl.controller.everything import Everything
from flexmarl.controller.metrics import ERRORS, REACTIONS, RECONCILES
from flexmarl.controller.reconcile import Reconciler
from flexmarl.controller.settings import ControllerSettings
from flexmarl.controller.turns import turn
from flexmarl.controller.wakes import Wakes
from flexmarl.controller.watching import kopf_settings, watching
from flexmarl.runtime.errors import InvalidJobError, UnavailableError
from flexmarl.runtime.logging import configure
from flexmarl.runtime.main import hopeless_exit, misconfigured, serve_metrics
from flexmarl.runtime.process import run_until_signalled

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Between two tries of a look that fails."""
AT_ONCE = 0.05
"""After so long a look that is to follow another does; later each time that it is still to."""
TOLD_SECONDS = 10.0
SOON = 5.0
"""After so long the first resync mends what happened before the watches began."""
ROUNDS = 4
"""Of the resync: after so many without one that ended well something is wrong for good."""
ALL_ROUNDS = 10
"""After so many every job is looked at, whether anything is new or not."""
ASKED_A_SECOND = 10
"""Orchestrators; while there are more, each less often."""

log = structlog.get_logger()


class Controller:
    def __init__(
        self, settings: ControllerSettings, cluster: Cluster, asker: Orchestrators
    ) -> None:
        self._settings, self._asker = settings, asker
        self._cache, self._wakes = Cache(), Wakes()
        self._everything = Everything(cluster, self._cache, settings.namespaces)
        self._reconciler = Reconciler(settings, cluster, self._cache, asker)
        self._pauses: dict[Key, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._synced = time.monotonic()
        self._untold, self._told = 0, asyncio.Event()
        """Objects that were read and of which no watch has told yet."""

    @property
    def healthy(self) -> bool:
        """Whether the resync still goes round, and nothing has ended that goes on for ever."""
        late = time.monotonic() - self._synced > ROUNDS * self._settings.resync_seconds
        return not late and not any(task.done() for task in self._tasks)

    @property
    def ready(self) -> bool:
        """Whether it has read what there is, and takes care of it."""
        return bool(self._tasks) and self.healthy

    async def fill(self) -> None:
        """Return once everything there is was read.

        A look before that takes for missing what was only not seen yet.
        """
        while True:
            try:
                await self._everything.read(self._wakes.wake)
                self._tells(self._cache.size)
                return
            except Exception:  # the border: the health check tells if it goes on
                log.exception("cannot read what there is", again=SOON)
                await asyncio.sleep(SOON)

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """All that goes on until it is cancelled."""
        looks = [self.work() for _ in range(self._settings.workers)]
        kinds = [kind for kind, most in MOST.items() for _ in range(most)]
        errands = [self._reconciler.errands.work(kind, self._wakes.wake) for kind in kinds]
        going = (*looks, *errands, self.resync(), self.ask())
        self._tasks = [group.create_task(one) for one in going]
        return self._tasks

    async def told(self) -> None:
        """Return once watches have told of as much as was read, or have had time to.

        They read everything anew, which keeps the processor busy: looks beside that are slow.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                await self._told.wait()

    def _tells(self, more: int) -> None:
        self._untold += more
        if self._untold <= 0:
            self._told.set()

    def event(self, kind: str, event: Mapping[str, Any]) -> None:
        """Of a watch."""
        self._tells(-1)
        change = self._cache.drop if event["type"] == "DELETED" else self._cache.put
        key = change(kind, event["object"])
        if key is not None:
            self._wakes.wake(key)

    async def work(self) -> None:
        """Look at jobs, one after the other, until cancelled."""
        while True:
            key, due = await self._wakes.next()
            try:
                with RECONCILES.time():
                    again = await self._reconciler.look(key) - time.time()
            except Exception as error:  # the border: one job's trouble is not another's
                ERRORS.labels(type(error).__name__).inc()
                pause = self._pause(key, SHORTEST_PAUSE)
                log.exception("look failed", job=f"{key.namespace}/{key.name}", again=pause)
                self._wakes.wake(key, pause)
            else:
                if again <= AT_ONCE:
                    again = self._pause(key, AT_ONCE)
                else:
                    self._pauses.pop(key, None)
                if again != float("inf"):
                    self._wakes.wake(key, again)
            finally:
                REACTIONS.observe(time.monotonic() - due)
                self._wakes.done(key)

    async def resync(self) -> None:
        """Until cancelled, see to it that nothing was missed."""
        pause = min(SOON, self._settings.resync_seconds)
        for round_ in count():
            await asyncio.sleep(pause)
            pause = self._settings.resync_seconds
            try:
                await self._compare_unwatched()
            except Exception:  # the border: what is watched is compared all the same
                log.exception("resync of what is not watched failed")
            try:
                await self._everything.read(self._wakes.wake)
                self._synced = time.monotonic()
                if round_ % ALL_ROUNDS == 0:
                    for key in self._cache.jobs():
                        self._wakes.wake(key)
                await self._sweep()
            except Exception:  # the border: the health check tells if it goes on
                log.exception("resync failed")

    async def ask(self) -> None:
        """Until cancelled, ask orchestrators how far they are.

        One that does not answer keeps nobody waiting.
        """
        asking, asked = set[Key](), dict[Key, float]()
        most = max(1, round(ASKED_A_SECOND * self._settings.progress_seconds))

        async def one(key: Key) -> None:
            try:
                where = self._reconciler.asks(key)
                said = None if where is None else await self._asker.progress(*where)
                # By now the job may be another one, or over: then nothing is known of it.
                known = said is not None and self._reconciler.asks(key) == where
                if said is not None and known and self._reconciler.tell(key, said):
                    self._wakes.wake(key)
            except Exception:  # the border: one job's trouble is not another's
                log.exception("asking failed", job=f"{key.namespace}/{key.name}")
            finally:
                asking.discard(key)

        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._settings.progress_seconds)
                answer = {key for key in self._cache.jobs() if self._reconciler.asks(key)}
                asked = {key: at for key, at in asked.items() if key in answer}
                hurried = {key for key in answer if self._reconciler.suspends(key)}
                for key in turn(asked, answer - asking, hurried, most):
                    asked[key] = time.monotonic()
                    asking.add(key)
                    group.create_task(one(key))

    def _pause(self, key: Key, least: float) -> float:
        """Longer each time, until a look has nothing more to do at once."""
        pause = max(least, min(LONGEST_PAUSE, 2 * self._pauses.get(key, 0.0)))
        self._pauses[key] = pause
        return pause

    async def _compare_unwatched(self) -> None:
        """These are half of all objects, of which only names and versions are read."""
        for kind in UNWATCHED:
            listed = await self._everything.metadata(kind)
            for key in self._reconciler.compare(kind, listed):
                self._wakes.wake(key)

    async def _sweep(self) -> None:
        try:
            for key in await self._reconciler.sweep():
                self._wakes.wake(key)
        except UnavailableError as error:
            log.warning("the store does not answer", error=str(error))


async def body(settings: ControllerSettings) -> None:
    """Serve until cancelled."""
    async with connected() as cluster, Orchestrators() as asker:
        settings = await identified(settings, cluster)
        controller = Controller(settings, cluster, asker)
        if settings.health_port:
            await _serve_health(controller, settings.health_port)
        await controller.fill()
        registry = kopf.OperatorRegistry()
        watching(registry, controller.event)
        async with asyncio.TaskGroup() as group:
            log.info("watching", namespaces=settings.namespaces or "all")
            watches = group.create_task(
                kopf.operator(
                    registry=registry,
                    settings=kopf_settings(),
                    standalone=True,
                    clusterwide=not settings.namespaces,
                    namespaces=settings.namespaces,
                )
            )
            await controller.told()
            ours = controller.start(group)
            await watches
            for task in ours:  # a signal comes to kopf, which takes its handler, and ends it alone
                task.cancel()


async def identified(settings: ControllerSettings, cluster: Cluster) -> ControllerSettings:
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


async def _serve_health(controller: Controller, port: int) -> web.AppRunner:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(status=200 if controller.healthy else 503)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if controller.ready else 503)

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()  # every address, IPv6 as well
    return runner


def main() -> None:
    with hopeless_exit():
        try:
            settings = ControllerSettings()
        except ValidationError as error:
            raise misconfigured(error, "FLEXMARL_") from None
        configure("controller", settings.log_format, settings.log_level)
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it tells of every event
        serve_metrics(settings.metrics_port)
        asyncio.run(run_until_signalled(lambda: body(settings)))
