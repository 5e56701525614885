"""Engines of a pool among policies: the real binder and engines' watchers, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.contract.orchestrator.fakes import FakeEngine, register_engine
from tests.unit.orchestrator.jobs import make_job

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.v1 import engine_pb2, routing_pb2, routing_pb2_grpc
from flexmarl.contracts.v1.weights_pb2 import WeightsRef
from flexmarl.orchestrator.binding import Binder
from flexmarl.orchestrator.desk import Desk
from flexmarl.orchestrator.directory import Directory
from flexmarl.orchestrator.engines import Engines
from flexmarl.orchestrator.limits import Limits
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.settings import Discovery

TOKEN = "job-token"
LIMITS = Limits(watch=0.05, tell_every=0.02, drain_look=0.01)
NAMES = ("ada", "ben", "cem", "dan")


def job(**balancing: Any) -> MARLJob:
    model = {"uri": "random://llama?hidden=8"}
    return MARLJob.model_validate(
        {
            "metadata": {"name": "team"},
            "spec": {
                "policies": [{"name": name, "model": model, "pools": ["few"]} for name in NAMES],
                "pools": [{"name": "few", "role": "engine", "max": 4}],
                "balancing": {
                    "hysteresisSeconds": 0.2,
                    "turnsPerEngine": 10,
                    "shrinkSeconds": 0.5,
                    **balancing,
                },
                "agents": [{"name": name, "policy": name} for name in NAMES],
                "workflow": {"name": "debate"},
                "data": {"uri": "gym://chain_sum"},
                "steps": 1,
            },
        }
    )


class BusyEngine(FakeEngine):
    """Plays `turns` of whatever it serves."""

    turns = 0

    async def Stats(self, request: Any, context: Any) -> engine_pb2.StatsResponse:
        found = await super().Stats(request, context)
        found.running = self.turns
        return found


class FakeRouting(routing_pb2_grpc.RoutingServicer):
    """A worker whose turns are a number."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.serving: dict[str, list[str]] = {}
        self.times = 0

    async def Bindings(self, request: Any, context: Any) -> routing_pb2.BindingsResponse:
        self.times += 1
        self.serving = {name: list(one.engines) for name, one in request.policies.items()}
        return routing_pb2.BindingsResponse(
            policies={
                name: routing_pb2.Work(turns=count, done=self.done.get(name, 0))
                for name, count in self.turns.items()
            }
        )

    def served(self) -> set[str]:
        return {name for name, engines in self.serving.items() if engines}


@dataclass
class Scene:
    engines: Engines
    fakes: dict[str, BusyEngine]
    """By address."""
    worker: FakeRouting
    desk: Desk
    leave: Callable[[str], Any]
    """Takes an engine away."""
    join: Callable[[], Any]

    def want(self, version: int) -> None:
        for name in NAMES:
            ref = WeightsRef(set=name, version=version, checksum=f"{name}-{version}")
            self.engines.want(name, ref)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - it lies in what was said over gRPC
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scene(folder: Path, count: int, **balancing: Any) -> AsyncIterator[Scene]:
    spec = job(**balancing)
    file = folder / "job.yaml"
    file.write_text(spec.model_dump_json(by_alias=True, exclude_unset=True))
    fakes: dict[str, BusyEngine] = {}
    servers: dict[str, AsyncExitStack] = {}
    async with AsyncExitStack() as stack:

        async def join() -> str:
            engine, own = BusyEngine(), await stack.enter_async_context(AsyncExitStack())
            address = await own.enter_async_context(
                serving(register_engine(engine), "127.0.0.1:0", token=TOKEN, drain_seconds=0)
            )
            fakes[address], servers[address] = engine, own
            return address

        for _ in range(count):
            await join()
        worker = FakeRouting()
        where = await stack.enter_async_context(
            serving(
                lambda server: routing_pb2_grpc.add_RoutingServicer_to_server(worker, server),
                "127.0.0.1:0",
                token=TOKEN,
                drain_seconds=0,
            )
        )
        directory = Directory(
            TOKEN, [], pools=["few"], workers=[where], engines={"few": list(fakes)}
        )
        stack.push_async_callback(directory.close)
        directory.open()
        engines = Engines(spec, directory.engines, directory.pools, LIMITS, 1)
        directory.changed = engines.look
        desk = Desk()
        binder = Binder(
            spec,
            1,
            engines,
            directory.worker_channels,
            limits=LIMITS,
            desk=desk,
            job_file=file,
        )

        async def leave(address: str) -> None:
            await servers[address].aclose()

        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(engines.watch()), tasks.create_task(binder.run())]
            yield Scene(engines, fakes, worker, desk, leave, join)
            for helper in helpers:
                helper.cancel()


async def test_an_engine_each_when_there_are_enough(tmp_path: Path) -> None:
    async with scene(tmp_path, 4) as there:
        there.want(3)
        await there.engines.ready()
        await there.until(lambda: there.worker.served() == set(NAMES))
        assert [there.engines.version(name) for name in NAMES] == [3] * 4
        assert sorted(fake.policy for fake in there.fakes.values()) == list(NAMES)
        there.want(4)
        await there.engines.ready()
        assert {fake.version for fake in there.fakes.values()} == {4}
        assert there.desk.engines == dict.fromkeys(NAMES, 1)


async def test_fewer_engines_go_round_and_a_version_is_there_before_it_is_loaded(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, 1) as there:
        there.want(1)
        await there.until(lambda: there.engines.version("dan") == 1)
        there.worker.turns = dict.fromkeys(NAMES, 2)
        served: set[str] = set()

        def all_were() -> bool:
            served.update(there.worker.served())
            return served == set(NAMES)

        await there.until(all_were)
        there.worker.turns = {"ben": 1}
        await there.until(lambda: there.worker.served() == {"ben"})


async def test_turns_of_the_policy_before_play_to_their_end(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as there:
        ((address, fake),) = there.fakes.items()
        there.want(1)
        there.worker.turns = {"ada": 3}
        await there.until(lambda: there.worker.served() == {"ada"})
        fake.turns = 3
        there.worker.turns = {"ada": 3, "ben": 2}
        await there.until(lambda: not there.worker.served())  # nobody is sent there any more
        await asyncio.sleep(0.1)
        assert fake.policy == "ada"
        fake.turns = 0
        await there.until(lambda: there.worker.serving["ben"] == [address])
        assert fake.loads[-1] == ("ben", 1)


async def test_an_engine_that_dies_frees_its_binding_and_one_that_comes_is_used(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, 2) as there:
        there.want(1)
        there.worker.turns = {"ada": 1, "ben": 1}
        await there.until(lambda: there.worker.served() == {"ada", "ben"})
        (gone,) = there.worker.serving["ada"]
        await there.leave(gone)
        there.worker.turns = {"ada": 1}
        await there.until(
            lambda: bool(there.worker.serving["ada"]) and gone not in there.worker.serving["ada"]
        )
        assert gone not in there.engines.bound("few")


async def test_what_an_engine_serves_already_it_goes_on_serving(tmp_path: Path) -> None:
    """The orchestrator that comes back finds engines at work."""
    async with scene(tmp_path, 2) as there:
        first, second = there.fakes
        for address, name in ((first, "dan"), (second, "cem")):
            there.fakes[address].policy = name
            there.fakes[address].version, there.fakes[address].checksum = 1, f"{name}-1"
        there.want(1)
        await there.until(lambda: len(there.worker.served()) == 2)
        assert there.worker.serving["dan"] in ([first], [])


async def test_a_pool_wants_as_many_as_its_backlog_needs(tmp_path: Path) -> None:
    async with scene(tmp_path, 2) as there:
        there.want(1)
        await there.until(lambda: there.desk.wanted == {"few": 2})  # as many as there are
        there.worker.turns = {"ada": 25, "ben": 14}
        await there.until(lambda: there.desk.wanted == {"few": 4})
        there.worker.turns = {"ada": 1}
        await there.until(lambda: there.desk.wanted == {"few": 1})


async def test_balancing_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async with scene(tmp_path, 3, hysteresisSeconds=3600) as there:
        there.want(1)
        there.worker.turns = {"ada": 40, "ben": 2, "cem": 0}
        await there.until(lambda: {"ada", "ben"} <= there.worker.served())
        spec = job(hysteresisSeconds=0)
        text = spec.model_dump_json(by_alias=True, exclude_unset=True)
        (tmp_path / "job.yaml").write_text(text)
        await there.until(lambda: len(there.worker.serving["ada"]) == 2)


async def test_a_pools_engines_are_looked_up_like_others(tmp_path: Path) -> None:
    directory = Directory(
        TOKEN,
        ["own"],
        Discovery(
            workers="127.0.0.1:1",
            engines={"own": "127.0.0.1:2"},
            pools={"few": "127.0.0.1:3"},
        ),
        pools=["few"],
    )
    assert directory.missing() == ["a worker", "an engine of own", "an engine of few"]
    await directory.look()
    assert list(directory.pools["few"]) == ["127.0.0.1:3"]
    assert directory.missing() == []
    await directory.close()


async def test_workers_hear_of_every_engine_that_has_come_to_hold_what_is_wanted(
    tmp_path: Path,
) -> None:
    """Where policies have engines of their own: groups in flight may use those that load late."""
    spec, worker = make_job(1), FakeRouting()
    fakes = [FakeEngine(), FakeEngine()]
    gate = fakes[1].gates[2] = asyncio.Event()
    async with AsyncExitStack() as stack:

        async def serve(add: Any) -> str:
            return await stack.enter_async_context(
                serving(add, "127.0.0.1:0", token=TOKEN, drain_seconds=0)
            )

        addresses = [await serve(register_engine(fake)) for fake in fakes]
        where = await serve(partial(routing_pb2_grpc.add_RoutingServicer_to_server, worker))
        directory = Directory(TOKEN, ["p0"], workers=[where], engines={"p0": addresses})
        stack.push_async_callback(directory.close)
        directory.open()
        engines = Engines(spec, directory.engines, directory.pools, LIMITS, 1)
        binder = Binder(
            spec,
            1,
            engines,
            directory.worker_channels,
            limits=LIMITS,
            desk=Desk(),
            job_file=tmp_path / "job.yaml",
        )

        async def heard(served: list[str]) -> None:
            async with asyncio.timeout(60):
                # In whatever order they were found.
                while set(worker.serving.get("p0", ())) != set(served):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(engines.watch()), tasks.create_task(binder.run())]
            engines.want("p0", WeightsRef(set="p0", version=1, checksum="1"))
            await heard(addresses)
            engines.want("p0", WeightsRef(set="p0", version=2, checksum="2"))
            await heard(addresses[:1])
            gate.set()
            await heard(addresses)
            times = worker.times
            await asyncio.sleep(10 * LIMITS.tell_every)
            assert worker.times == times  # nothing has changed
            for helper in helpers:
                helper.cancel()
