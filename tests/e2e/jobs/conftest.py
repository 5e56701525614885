"""Jobs that several tests look at: each runs once, beside the tests that run jobs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from .running import Job
from .specs import team

MakeJob: TypeAlias = Callable[..., Job]


@pytest.fixture(scope="session")
def make_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeJob]:
    """Jobs of which nothing is left when the tests are over, whatever became of them."""
    jobs: list[Job] = []

    def make(spec: Mapping[str, Any], **environment: str) -> Job:
        jobs.append(Job(tmp_path_factory.mktemp("job"), spec, environment))
        return jobs[-1]

    yield make
    for job in jobs:
        job.clean_up()


@pytest.fixture(scope="session")
def beside() -> Iterator[Callable[[Job], Future[Job]]]:
    """Runs jobs to their end, one after another, while tests go on: a start is one core's work."""

    def complete(job: Job) -> Job:
        job.complete()
        assert job.left() == []
        return job

    with ThreadPoolExecutor(max_workers=1) as pool:
        yield lambda job: pool.submit(complete, job)
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def starting_reference(make_job: MakeJob, beside: Callable[[Job], Future[Job]]) -> Future[Job]:
    return beside(make_job(team()))


@pytest.fixture
def reference(starting_reference: Future[Job]) -> Job:
    """The team's run that nothing disturbed, complete."""
    return starting_reference.result()
