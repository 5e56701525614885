"""Jobs that several tests look at: each runs once, beside the tests that run jobs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest

from .chat_server import ChatServer, chat_server
from .running import Job
from .specs import agent, job, one_after_the_other, policy, team

MakeJob: TypeAlias = Callable[..., Job]
Beside: TypeAlias = Callable[[Job], "Future[Job]"]
FROZEN = {"algorithm": "none"}
BESIDE = ("starting_reference", "council", "debate", "chain", "play")
"""Fixtures that run a job beside the tests."""


@pytest.fixture(scope="session")
def make_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeJob]:
    """Jobs of which nothing is left when the tests are over, whatever became of them."""
    jobs: list[Job] = []

    def make(spec: Mapping[str, Any], **environment: str) -> Job:
        jobs.append(Job(tmp_path_factory.mktemp("job"), spec, environment))
        return jobs[-1]

    yield make
    for each in jobs:
        each.clean_up()


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
def starting_reference(make_job: MakeJob, beside: Beside) -> Future[Job]:
    return beside(make_job(one_after_the_other(team())))


@pytest.fixture
def reference(starting_reference: Future[Job]) -> Job:
    """The team's run that nothing disturbed, complete."""
    return starting_reference.result()


@pytest.fixture(scope="session", autouse=True)
def all_started(request: pytest.FixtureRequest) -> None:
    """Those that a selected test will ask for, so that they follow each other without a pause."""
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    for name in BESIDE:
        if name in wanted:
            request.getfixturevalue(name)


@pytest.fixture(scope="session")
def chat() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.fixture(scope="session")
def council(make_job: MakeJob, beside: Beside, chat: ChatServer, store: str) -> Future[Job]:
    """Real tiny models: two agents of one policy, a frozen one and an external judge."""
    external = {"baseUrl": chat.url, "model": "judge-1", "apiKeyEnv": "JUDGE_KEY"}
    spec = job(
        {"name": "mixture-of-agents"},
        [
            policy("writers", engine={"kind": "transformers"}),
            policy("rival", engine={"kind": "transformers"}, training=FROZEN),
            {"name": "api", "engine": {"kind": "openai", "openai": external}, "training": FROZEN},
        ],
        [agent("ada", "writers"), agent("ben", "writers"), agent("rival"), agent("judge", "api")],
        store={"url": store},
    )
    return beside(make_job(spec, JUDGE_KEY="sesame"))


@pytest.fixture(scope="session")
def debate(make_job: MakeJob, beside: Beside) -> Future[Job]:
    """Three policies in one slot; two workers, two engines of each; weights over TCP."""
    names = ["ada", "ben", "cem"]
    spec = job(
        {"name": "debate", "config": {"rounds": 2}},
        [policy(name) for name in names],
        [agent(name) for name in names],
        steps=2,
        weightSync={"transport": "tcp"},
        roles={"worker": {"replicas": 2}, "engine": {"replicas": 2}, "trainer": {"replicas": 1}},
    )
    return beside(make_job(spec))


@pytest.fixture(scope="session")
def chain(make_job: MakeJob, beside: Beside) -> Future[Job]:
    """A planner and two executors whose reward cannot be relied on."""
    spec = job(
        {"name": "planner-executor", "config": {"executors": ["doer", "checker"]}},
        [policy("planner"), policy("doers")],
        [agent("planner"), agent("doer", "doers"), agent("checker", "doers")],
        data={"uri": "file://tasks.jsonl", "shuffle": False},
        batch={"tasksPerStep": 8, "groupSize": 3},
        reward={"entrypoint": "team:unreliable", "timeout": 0.5},
    )
    return beside(make_job(spec))


@pytest.fixture(scope="session")
def play(make_job: MakeJob, beside: Beside) -> Future[Job]:
    """An agent with a real tiny model in the user's own environment, paid by it alone."""
    world = {"entrypoint": "world:Letters", "config": {"turns": 3}}
    spec = job(
        {"name": "environment", "config": {"environment": world, "turnRewards": True}},
        [policy("player", engine={"kind": "transformers"})],
        [agent("player")],
    )
    del spec["reward"]
    return beside(make_job(spec))
