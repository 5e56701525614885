"""The real orchestrator and experience service among small stand-ins, all over real gRPC."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.contract.experience.conftest import Server, running
from tests.contract.orchestrator.fakes import (
    START,
    FakeEngine,
    FakeTrainer,
    Ledger,
    Memory,
    State,
    after,
    register_engine,
    register_trainer,
)
from tests.contract.orchestrator.players import FakeWorker, register_worker, tokens

from flexmarl.contracts.job import MARLJob
from flexmarl.data.tasks import tasks_of_step
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.server import register
from flexmarl.experience.store import Store
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.limits import Limits
from flexmarl.orchestrator.run import run_job
from flexmarl.orchestrator.rundir import lines
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.seeds import derive_seed
from flexmarl.runtime.settings import Settings

TOKEN = "job-token"
QUICK = Limits(
    start=20, unreachable=20, confirm=0.3, watch=0.05, answers=3, resting=0.1, idle_steps=3
)
Record = dict[str, Any]
RECORDS: list[Record] = [{"question": f"{number}+{number}"} for number in range(10)]
_uids = itertools.count()


@dataclass
class Team:
    """Everything around the orchestrator, which a test starts as often as it likes."""

    job: MARLJob
    folder: Path
    settings: Settings
    experience: ExperienceClient
    engines: dict[str, FakeEngine]
    """By address."""
    trainers: list[FakeTrainer]
    workers: list[FakeWorker]
    memory: Memory
    ledger: Ledger

    async def run(self, limits: Limits = QUICK, desk: Desk | None = None, **settings: Any) -> None:
        async with asyncio.timeout(60):
            await run_job(self.job, self.settings.model_copy(update=settings), limits, desk)

    def lines(self, name: str) -> list[dict[str, Any]]:
        return lines(self.settings.run_dir / f"{name}.jsonl")

    def json(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.settings.run_dir / name).read_text())
        return value

    @property
    def requests(self) -> list[Any]:
        return [request for worker in self.workers for request in worker.requests]

    def assert_every_task_was_trained_once(self) -> None:
        """By each policy, whatever step it came to be trained in; and all steps were."""
        spec = self.job.spec
        expected = Counter(
            task.id
            for step in range(spec.steps)
            for task in tasks_of_step(
                RECORDS, spec.seed, spec.data.shuffle, step, spec.batch.tasks_per_step
            )
        )
        for policy in spec.trained_policies:
            assert self.memory.states[policy].version == spec.steps
            assert self.ledger.tasks(policy) == expected
        steps = [line["step"] for line in self.lines("metrics")]
        assert steps == list(range(spec.steps))
        assert self.json("progress.json")["phase"] == "Complete"

    def assert_trained_as_if_nothing_had_happened(self) -> None:
        """Every policy holds what an undisturbed run gives, bit for bit."""
        for policy in self.job.spec.trained_policies:
            assert self.memory.states[policy] == State(
                self.job.spec.steps, undisturbed(self.job, policy)
            )
        steps = [line["step"] for line in self.lines("metrics")]
        assert steps == list(range(self.job.spec.steps))
        assert self.json("progress.json")["phase"] == "Complete"


def undisturbed(job: MARLJob, policy: str) -> str:
    """The history of `policy` after all steps, from the job file alone."""
    history = START
    batch, seed = job.spec.batch, job.spec.seed
    for step in range(job.spec.steps):
        groups = {}
        for index, task in enumerate(
            tasks_of_step(RECORDS, seed, job.spec.data.shuffle, step, batch.tasks_per_step)
        ):
            group_seed = derive_seed(seed, "group", step, index)
            ids = [
                tokens(group_seed, episode)
                for _ in job.spec.agents_of(policy)
                for episode in range(batch.group_size)
            ]
            groups[index] = f"{task.id}:{ids}"
        history = after(history, groups)
    return history


@pytest.fixture(scope="session")
def store_server() -> Iterator[Server]:
    with running() as server:
        yield server


@asynccontextmanager
async def team(
    job: MARLJob,
    folder: Path,
    server: Server,
    *,
    slots: int = 2,
    workers: int = 1,
    records: Sequence[Record] = RECORDS,
) -> AsyncIterator[Team]:
    """A new submission of `job`, with empty memory."""
    (folder / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "held-out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records[:4]))
    uid = f"default/orchestrated/{next(_uids)}"
    async with AsyncExitStack() as stack:

        async def serve(add: Any) -> str:
            return await stack.enter_async_context(
                serving(add, "127.0.0.1:0", token=TOKEN, drain_seconds=0)
            )

        store = await stack.enter_async_context(
            Store(
                server.url,
                uid,
                job.spec.trained_policies,
                max_staleness=job.spec.pipeline.max_staleness,
            )
        )
        experience_address = await serve(register(store))
        experience = await stack.enter_async_context(ExperienceClient(experience_address, TOKEN))
        memory, ledger = Memory(), Ledger()
        engines: dict[str, FakeEngine] = {}
        by_policy: dict[str, list[str]] = {}
        for policy in job.spec.local_policies:
            engine = FakeEngine()
            if policy not in job.spec.trained_policies:
                engine.policy = policy
            address = await serve(register_engine(engine))
            engines[address] = engine
            by_policy[policy] = [address]
        trainers = [
            FakeTrainer(experience, memory, ledger, job.spec.pipeline.max_staleness)
            for _ in range(slots)
        ]
        agents = {agent.name: agent.policy for agent in job.spec.agents}
        players = [FakeWorker(experience, engines, agents) for _ in range(workers)]
        yield Team(
            job,
            folder,
            Settings(
                job_file=folder / "job.yaml",
                base_dir=folder,
                job_uid=uid,
                token=TOKEN,
                run_dir=folder / "run",
                experience=experience_address,
                workers=[await serve(register_worker(player)) for player in players],
                engines=by_policy,
                trainers=[await serve(register_trainer(trainer)) for trainer in trainers],
            ),
            experience,
            engines,
            trainers,
            players,
            memory,
            ledger,
        )
        store.release()


async def told(around: Team, words: str) -> str:
    """What the job says, once it has these words."""
    async with asyncio.timeout(60):
        while words not in (message := message_of(around)):  # noqa: ASYNC110 - a file says it
            await asyncio.sleep(0.05)
    return message


def message_of(around: Team) -> str:
    try:
        return str(around.json("progress.json")["message"])
    except FileNotFoundError:
        return ""
