"""Jobs that run beside each other and beside other tests: a job mostly waits, tests do, too.

A test marked `beside` takes only the `stage`. It begins with the session, in a thread, and is
reported when its turn comes; one marked `alone` begins when all those have ended.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import pytest

from .chart import Release
from .jobs import Job
from .kube import Kubernetes
from .specs import STEPS, TASKS, team

WORKERS = 2
"""Jobs at a time, beside the tests that are not marked: what two cores start without delay."""


@dataclass
class Stage:
    cluster: Kubernetes
    images: Mapping[str, str]
    release: Release
    left: list[str]
    """Namespaces that tests are done with."""
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS))
    _running: dict[str, Future[None]] = field(default_factory=dict)
    _undisturbed: Future[Job] | None = None

    def job(self, name: str = "team") -> Job:
        """In a namespace of its own."""
        return Job(self.cluster, self.images, self.namespace(), name)

    def namespace(self) -> str:
        name = f"e2e-{secrets.token_hex(3)}"
        self.cluster.kubectl("create", "namespace", name)
        self.cluster.kubectl(
            "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted"
        )
        return name

    def done_with(self, *namespaces: str) -> None:
        for name in namespaces:
            self.cluster.kubectl("delete", "namespace", name, "--wait=false")
            self.left.append(name)

    def undisturbed(self) -> Job:
        """The team that nothing befell, complete and read."""
        assert self._undisturbed is not None
        return self._undisturbed.result()

    def begin(self, items: Iterable[pytest.Item]) -> None:
        """Everything among these tests that runs beside the others, in their order."""
        mine = [item for item in items if item.get_closest_marker("beside")]
        if not mine:
            return
        self._undisturbed = self._pool.submit(self._complete_undisturbed)
        for item in mine:
            assert isinstance(item, pytest.Function)
            arguments = item.callspec.params if hasattr(item, "callspec") else {}
            call = partial(item.obj, stage=self, **arguments)
            self._running[item.nodeid] = self._pool.submit(self._watched, call)

    def result(self, item: pytest.Item) -> bool:
        """Waits for the end of a test that runs beside; False: it does not."""
        running = self._running.get(item.nodeid)
        if running is None:
            return False
        running.result()
        return True

    def quiet(self) -> None:
        """Once nothing runs beside any more, failed or not."""
        for running in self._running.values():
            running.exception()

    def end(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _complete_undisturbed(self) -> Job:
        job = self.job()
        job.submit(team(STEPS))
        job.completes()
        assert len(job.files["metrics"]) == STEPS
        assert all(len(line["tasks"]) == TASKS for line in job.files["metrics"])
        self.done_with(job.namespace)
        return job

    def _watched(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            for frame in traceback.walk_tb(error.__traceback__):
                job = frame[0].f_locals.get("job")
                if isinstance(job, Job):
                    error.add_note(self.cluster.evidence(job.namespace))
                    break
            raise
