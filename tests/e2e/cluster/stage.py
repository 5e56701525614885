"""Tests that run beside each other: each mostly waits for a cluster that mostly waits for jobs.

A test takes the `stage` alone. It begins with the session, in a thread, and is reported when its
turn comes; one marked `alone` runs in its turn, when all others have ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from queue import SimpleQueue

import pytest

from .chart import Release
from .jobs import Job
from .kube import ENDED, Kubernetes
from .specs import STEPS, TASKS, team

JOBS, LIGHT = 3, 2
"""Tests at a time: of those that run jobs, what a node of two cores has room for, and of others."""


@dataclass
class Stage:
    """What one test has: each job and whatever else in a namespace, all gone after the test."""

    cluster: Kubernetes
    images: Mapping[str, str]
    """Image name -> what to name in a pod."""
    release: Release
    undisturbed: Callable[[], Job]
    """The team that nothing befell, complete and read."""
    namespaces: list[str] = field(default_factory=list)

    def job(self, name: str = "team") -> Job:
        """In a namespace of its own."""
        return Job(self.cluster, self.images, self.namespace(), name)

    def namespace(self) -> str:
        """One under the restricted Pod Security profile."""
        name = f"e2e-{secrets.token_hex(3)}"
        self.namespaces.append(name)
        self.cluster.restricted_namespace(name)
        return name


@dataclass
class Beside:
    """All tests of a session that run beside others."""

    cluster: Kubernetes
    images: Mapping[str, str]
    release: Release
    left: list[str]
    """Namespaces that tests are done with."""
    say: Callable[[str], None]
    """How each ended, as soon as it has: its turn to be reported may be far."""
    _news: SimpleQueue[str] = field(default_factory=SimpleQueue)
    _jobs: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(JOBS))
    _light: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(LIGHT))
    _running: dict[str, Future[None]] = field(default_factory=dict)
    _undisturbed: Future[Job] | None = None

    def begin(self, items: Iterable[pytest.Item]) -> None:
        """All that are not alone, those first that take longest."""
        beside = [item for item in items if not item.get_closest_marker("alone")]
        beside.sort(key=lambda item: item.get_closest_marker("long") is None)
        if beside:
            self._begin_undisturbed()
        for item in beside:
            assert isinstance(item, pytest.Function)
            arguments = item.callspec.params if hasattr(item, "callspec") else {}
            taken = {*signature(item.obj).parameters} - {*arguments}
            assert taken == {"stage"}, f"{item.nodeid} takes {taken}"
            call = partial(self._watched, item.nodeid, partial(item.obj, **arguments))
            pool = self._light if item.get_closest_marker("light") else self._jobs
            self._running[item.nodeid] = pool.submit(call)

    def result(self, item: pytest.Item) -> bool:
        """Waits for the end of a test that runs beside; False: it does not."""
        running = self._running.get(item.nodeid)
        if running is None:
            return False
        while not running.done():
            wait([running], timeout=1)
            self._tell()
        running.result()
        return True

    def quiet(self) -> None:
        """Once nothing runs beside any more, failed or not."""
        wait(self._running.values())
        self._tell()

    def end(self) -> None:
        ENDED.set()
        for pool in (self._jobs, self._light):
            pool.shutdown(cancel_futures=True)

    @contextmanager
    def stage(self) -> Iterator[Stage]:
        """Of one test; what it has brought goes with it, failed or not."""
        found = Stage(self.cluster, self.images, self.release, self._await_undisturbed)
        try:
            yield found
        finally:
            for name in found.namespaces:
                where = ("namespace", name, "--wait=false", "--ignore-not-found")
                self.cluster.kubectl("delete", *where, check=False)
                self.left.append(name)

    def _tell(self) -> None:
        while not self._news.empty():
            self.say(self._news.get())

    def _await_undisturbed(self) -> Job:
        return (self._undisturbed or self._begin_undisturbed()).result()

    def _begin_undisturbed(self) -> Future[Job]:
        """First of all; or when one asks that is alone, and nothing else was chosen to run."""
        self._undisturbed = self._jobs.submit(self._complete_undisturbed)
        return self._undisturbed

    def _complete_undisturbed(self) -> Job:
        with self.stage() as stage:
            job = stage.job()
            job.submit(team(STEPS))
            job.completes()
        assert len(job.files["metrics"]) == STEPS
        assert all(len(line["tasks"]) == TASKS for line in job.files["metrics"])
        return job

    def _watched(self, name: str, call: Callable[..., None]) -> None:
        began = time.monotonic()
        how = "failed"
        with self.stage() as stage:
            try:
                call(stage=stage)
                how = "passed"
            except pytest.skip.Exception:
                how = "skipped"
                raise
            except BaseException as error:
                how = f"failed with {error!s:.1000}"
                for namespace in stage.namespaces:
                    error.add_note(self.cluster.evidence(namespace))
                raise
            finally:
                self._news.put(f"{name}, after {time.monotonic() - began:.1f} s: {how}")
