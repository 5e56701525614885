"""`bench store`: groups per second through the experience service against what it stands on.

Two baselines, each alternately with ours: the same bytes sent to the same server as plain, whole
and acknowledged (MULTI, one XADD per sample, EXEC), and the package transferqueue, where it is
installed, over the same put, get and clear. Producers are tasks of this process, as they are of a
worker; the service and the server are processes of their own on both sides.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from redis.asyncio import BlockingConnectionPool, Redis

from flexmarl.bench import rivals
from flexmarl.bench.measure import Measure, alone, alternate, paired
from flexmarl.bench.stack import AGENT, POLICY, bench_job, running
from flexmarl.contracts.reading import load_job
from flexmarl.experience.allocation import keep_freed_memory
from flexmarl.experience.client import ExperienceClient
from flexmarl.experience.keys import Keys, job_tag
from flexmarl.experience.samples import GroupId, PolicySamples, Sequence, TurnSpan, VersionSpan
from flexmarl.local.crew import Crew
from flexmarl.local.plan import LocalLayout, plan_processes
from flexmarl.local.roles import MODULES
from flexmarl.local.supervisor import SHM_DIR, sockets_directory
from flexmarl.runtime.grpc import wait_ready

GROUP = 16
"""Samples in a group."""
TOKEN_BYTES = 9
START_SECONDS = 60.0
PRODUCERS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Case:
    kib: int
    """Of one sample."""
    groups: int
    """In one round, which is one step."""
    raw_goal: float
    rival_goal: float


CASES = (Case(2, 256, 0.2, 5.0), Case(16, 128, 0.4, 2.5), Case(256, 24, 0.4, 0.8))
ROUNDS = 5
MEMORY_GROUPS = 100_000
MEMORY_STEP = 1_000


@dataclass(frozen=True, slots=True)
class Bench:
    experience: ExperienceClient
    redis: Redis
    """To the same server, as the same user."""
    prefix: str
    """Of the keys of that user."""
    incarnation: int
    epoch: int
    steps: Iterator[int]


async def run(say: Callable[[str], None], *, memory_groups: int = MEMORY_GROUPS) -> list[Measure]:
    """Needs two cores' worth of quiet to mean much: the spread says how much it had.

    `say` hears why a baseline is left out.
    """
    keep_freed_memory()  # as a worker does; the other side's client lives in this process, too
    measures = []
    async with services() as bench:
        for case in CASES:
            for producers in PRODUCERS:
                measures.append(await against_raw(bench, case, producers))
        rival = rivals.find(say)
        if rival is not None:
            async with rival as other:
                for case in CASES:
                    measures.append(await against_rival(bench, case, other))
        measures.append(await memory(bench, memory_groups))
    return measures


async def against_raw(bench: Bench, case: Case, producers: int) -> Measure:
    arrays = one_sample(case)

    async def ours() -> float:
        step = next(bench.steps)
        groups = samples_of(bench, case, step)
        began = time.perf_counter()
        await produce(bench, groups, producers)
        seconds = time.perf_counter() - began
        await finish(bench, step)
        return case.groups / seconds

    async def raw() -> float:
        key, numbers = f"{bench.prefix}raw", iter(range(case.groups))

        async def send() -> None:
            for _ in numbers:
                async with bench.redis.pipeline(transaction=True) as pipe:
                    for _ in range(GROUP):
                        pipe.xadd(key, {name: array.tobytes() for name, array in arrays.items()})
                    await pipe.execute()

        began = time.perf_counter()
        await together(send, producers)
        seconds = time.perf_counter() - began
        await bench.redis.delete(key)
        return case.groups / seconds

    values, baselines = await alternate(ROUNDS, ours, raw)
    name = f"append, {case.kib} KiB x {GROUP}, {producers} producers, to raw streams"
    return paired(name, values, baselines, "groups/s", case.raw_goal)


async def against_rival(bench: Bench, case: Case, rival: rivals.Rival) -> Measure:
    arrays, numbers = one_sample(case), itertools.count()

    async def ours() -> float:
        step = next(bench.steps)
        groups = samples_of(bench, case, step)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce(bench, groups, rivals.IN_FLIGHT))
            tasks.create_task(consume(bench, step, case.groups))
        await finish(bench, step)
        return case.groups / (time.perf_counter() - began)

    async def theirs() -> float:
        return await rival.rate(f"round {next(numbers)}", arrays, GROUP, case.groups)

    values, baselines = await alternate(ROUNDS, ours, theirs)
    name = f"put, get, clear, {case.kib} KiB x {GROUP}, to {rival.name}"
    return paired(name, values, baselines, "groups/s", case.rival_goal)


async def memory(bench: Bench, groups: int) -> Measure:
    """What the server holds after so many groups more than after the first step of them."""
    small = Case(1, MEMORY_STEP, 0, 0)
    held = list[int]()
    for _ in range(max(2, groups // MEMORY_STEP)):
        step = next(bench.steps)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce(bench, samples_of(bench, small, step, 1), 8))
            tasks.create_task(consume(bench, step, small.groups))
        await finish(bench, step)
        held.append(int((await bench.redis.info("memory"))["used_memory_dataset"]))
    more = (min(held[-3:]) - held[0]) / (1 << 20)
    return alone(f"memory left by {len(held) * MEMORY_STEP} groups", [more], "MiB", goal=1.0)


def one_sample(case: Case) -> dict[str, np.ndarray]:
    """Half prompt, half sampled."""
    tokens = case.kib * 1024 // TOKEN_BYTES
    mask = (np.arange(tokens) >= tokens // 2).astype(np.uint8)
    ids = np.random.default_rng(0).integers(0, 50_000, tokens, dtype=np.int32)
    return {
        "token_ids": ids,
        "loss_mask": mask,
        "logprobs": -np.linspace(0.1, 5, tokens, dtype=np.float32) * mask,
    }


def samples_of(
    bench: Bench, case: Case, step: int, episodes: int = GROUP
) -> list[tuple[GroupId, PolicySamples]]:
    """A step of groups as a worker has them: arrays, and who said what."""
    arrays = one_sample(case)
    tokens = len(arrays["token_ids"])
    turn = TurnSpan(tokens // 2, tokens, (VersionSpan(step, 0, tokens - tokens // 2),), "stop", 1.0)
    groups = []
    for index in range(case.groups):
        group = GroupId(bench.incarnation, step, index)
        sequences = tuple(
            Sequence(
                id=group.sequence_id(episode, AGENT, 0),
                agent=AGENT,
                episode=episode,
                turns=(turn,),
                reward=0.0,
                **arrays,
            )
            for episode in range(episodes)
        )
        groups.append((group, PolicySamples(POLICY, step, sequences)))
    return groups


async def produce(
    bench: Bench, groups: list[tuple[GroupId, PolicySamples]], producers: int
) -> None:
    waiting = iter(groups)

    async def send() -> None:
        for group, samples in waiting:
            await bench.experience.append_group(group, "task", [samples])

    await together(send, producers)


async def consume(bench: Bench, step: int, count: int) -> None:
    cursor, seen = "", 0
    while seen < count:
        lease = await bench.experience.lease(POLICY, bench.epoch, step, cursor)
        cursor, seen = lease.cursor, seen + len(lease.groups)


async def finish(bench: Bench, step: int) -> None:
    await bench.experience.commit(POLICY, bench.epoch, step)
    await bench.experience.close_step(bench.incarnation, step)


async def together(send: Callable[[], Awaitable[None]], count: int) -> None:
    await asyncio.gather(*(send() for _ in range(count)))


@asynccontextmanager
async def services() -> AsyncIterator[Bench]:
    """The store and its service as a job on one machine has them, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as name:
        directory = Path(name)
        document = bench_job({"uri": "random://llama?hidden=64&layers=2&heads=4"}, {}, 1, 1)
        document["spec"]["store"] = {"maxMemoryMib": 1024}
        job_file = directory / "job.yaml"
        job_file.write_text(yaml.safe_dump(document))
        (directory / "logs").mkdir()
        layout = LocalLayout(
            job_file=job_file,
            base_dir=directory,
            run_dir=directory,
            sockets=sockets_directory(),
            shm_dir=SHM_DIR,
            job_uid=f"b{secrets.token_hex(6)}",
            token=secrets.token_urlsafe(24),
            store_password=secrets.token_urlsafe(24),
        )
        job = load_job(job_file)
        plans = [
            plan for plan in plan_processes(job, layout) if plan.role in {"store", "experience"}
        ]
        url = plans[0].settings["FLEXMARL_STORE_URL"]
        pool = BlockingConnectionPool.from_url(url, max_connections=max(PRODUCERS))
        prefix = Keys(job_tag(job.metadata.namespace, job.metadata.name, layout.job_uid)).prefix
        async with (
            running(Crew(plans, layout, MODULES, lambda _: None)),
            ExperienceClient(layout.address("experience"), layout.token) as experience,
            Redis.from_pool(pool) as redis,
        ):
            await wait_ready(layout.address("experience"), START_SECONDS)
            incarnation = await experience.take_incarnation()
            epoch = await experience.take_epoch(POLICY, incarnation)
            yield Bench(experience, redis, prefix, incarnation, epoch, itertools.count())
