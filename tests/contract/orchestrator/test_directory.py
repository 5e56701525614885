"""Who is there, as the addresses behind names say: real servers, and a resolver that is made up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest
from tests.contract.orchestrator.fakes import FakeEngine, register_engine

from flexmarl.contracts.v1 import engine_pb2
from flexmarl.orchestrator import directory as module
from flexmarl.orchestrator.directory import Directory, addresses
from flexmarl.runtime.grpc import serving
from flexmarl.runtime.settings import Discovery

TOKEN = "job-token"


@dataclass
class Pods:
    """Of the pool `few` and its engines, all at one port; names and who stands behind them."""

    stack: AsyncExitStack
    port: int = 0
    behind: dict[str, list[str]] = field(default_factory=dict)
    """Name -> hosts; a name that is missing is not known, an empty one has no answer."""
    asked: list[str] = field(default_factory=list)
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    """By address."""

    async def start(self, host: str) -> str:
        engine = FakeEngine()
        address = await self.stack.enter_async_context(
            serving(register_engine(engine), f"{host}:{self.port}", token=TOKEN, drain_seconds=0)
        )
        self.port = int(address.rpartition(":")[2])
        self.engines[address] = engine
        return address

    def resolve(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host not in self.behind:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if not self.behind[host]:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (one, port)) for one in self.behind[host]]


@pytest.fixture
async def pods(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    async with AsyncExitStack() as stack:
        found = Pods(stack)
        await found.start("127.0.0.1")
        await found.start("127.0.0.2")
        monkeypatch.setattr(socket, "getaddrinfo", found.resolve)
        yield found


@pytest.fixture
async def directory(pods: Pods) -> AsyncIterator[Directory]:
    discovery = Discovery(
        workers=f"workers:{pods.port}",
        engines={"solver": f"solver:{pods.port}"},
        pools={"few": f"few:{pods.port}"},
    )
    found = Directory(TOKEN, ["solver"], discovery, pools=["few"])
    found.open()
    yield found
    await found.close()


async def asks(stub: Any, **how: Any) -> bool:
    return bool((await stub.Stats(engine_pb2.StatsRequest(), timeout=10, **how)).loaded)


async def test_whoever_is_listed_can_be_called_with_the_job_s_token(
    pods: Pods, directory: Directory
) -> None:
    assert directory.missing() == ["a worker", "an engine of solver", "an engine of few"]
    first, second = pods.engines
    pods.behind = {"workers": ["127.0.0.1"], "solver": ["127.0.0.1"], "few": ["127.0.0.1"]}
    await directory.look()
    assert directory.missing() == []
    assert set(directory.workers) == set(directory.worker_channels) == {first}
    pods.behind["few"] = ["127.0.0.2", "127.0.0.1", "127.0.0.2"]
    await directory.look()
    assert sorted(directory.pools["few"]) == [first, second]
    pods.engines[second].policy = "solver"
    assert await asks(directory.pools["few"][second])
    assert not await asks(directory.engines["solver"][first])


async def test_who_holds_the_members_sees_them_come_and_go(
    pods: Pods, directory: Directory
) -> None:
    changes: list[int] = []
    members = directory.engines["solver"]
    directory.changed = lambda: changes.append(len(members))
    for listed in (["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2"]):
        pods.behind["solver"] = listed
        await directory.look()
    assert changes == [1, 2, 1]
    assert list(members) == [list(pods.engines)[1]]
    assert directory.engines["solver"] is members


async def test_a_resolver_that_does_not_answer_takes_nobody_away(
    pods: Pods, directory: Directory
) -> None:
    pods.behind = {"solver": ["127.0.0.1"], "few": ["127.0.0.2"]}
    await directory.look()
    pods.behind = {"solver": [], "workers": ["127.0.0.1"]}  # few is known to have nobody
    await directory.look()
    assert directory.missing() == ["an engine of few"]
    assert len(directory.workers) == 1


async def test_what_is_in_flight_to_one_that_leaves_comes_to_its_end(
    pods: Pods, directory: Directory
) -> None:
    pods.behind["solver"] = ["127.0.0.1"]
    await directory.look()
    (address,) = pods.engines.keys() & directory.engines["solver"].keys()
    loads, go_on = asyncio.Event(), asyncio.Event()
    engine = pods.engines[address]
    engine.gates[3] = go_on
    engine.on_load = lambda version: loads.set()
    request = engine_pb2.LoadWeightsRequest(policy="solver")
    request.weights.version = 3
    stub = directory.engines["solver"][address]
    call = asyncio.ensure_future(stub.LoadWeights(request, timeout=20))
    await loads.wait()
    del pods.behind["solver"]
    await directory.look()
    assert directory.engines["solver"] == {}
    go_on.set()
    assert (await call).version == 3


async def test_one_that_comes_back_at_its_address_is_called_anew(
    pods: Pods, directory: Directory
) -> None:
    stubs: list[Any] = []
    for listed in ({"solver": ["127.0.0.1"]}, {}, {"solver": ["127.0.0.1"]}):
        pods.behind = listed
        await directory.look()
        stubs += directory.engines["solver"].values()
    assert stubs[0] is not stubs[1]
    assert not await asks(stubs[1])


async def test_closing_ends_what_is_still_in_flight(pods: Pods, directory: Directory) -> None:
    pods.behind["solver"] = ["127.0.0.1"]
    await directory.look()
    ((address, stub),) = directory.engines["solver"].items()
    started = asyncio.Event()
    pods.engines[address].gates[3] = asyncio.Event()
    pods.engines[address].on_load = lambda version: started.set()
    request = engine_pb2.LoadWeightsRequest(policy="solver")
    request.weights.version = 3
    call = asyncio.ensure_future(stub.LoadWeights(request, timeout=60))
    await started.wait()
    del pods.behind["solver"]
    await directory.look()
    await directory.close()
    done, _ = await asyncio.wait({call}, timeout=20)  # far below LEAVING_SECONDS
    assert done
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call
    pods.engines[address].gates[3].set()


async def test_one_that_left_is_let_go_of_in_the_end(
    pods: Pods, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAVING_SECONDS", 0.2)
    pods.behind["solver"] = ["127.0.0.1"]
    await directory.look()
    ((address, stub),) = directory.engines["solver"].items()
    pods.engines[address].gates[3] = asyncio.Event()
    request = engine_pb2.LoadWeightsRequest(policy="solver")
    request.weights.version = 3
    call = asyncio.ensure_future(stub.LoadWeights(request, timeout=60))
    del pods.behind["solver"]
    await directory.look()
    done, _ = await asyncio.wait({call}, timeout=20)
    assert done
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call


async def test_watching_looks_again_and_again(
    pods: Pods, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    watching = asyncio.ensure_future(directory.watch())
    seen = asyncio.Event()
    directory.changed = seen.set
    for listed in (["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
        seen.clear()
        pods.behind["workers"] = listed
        async with asyncio.timeout(20):
            await seen.wait()
    assert sorted(directory.workers) == sorted(pods.engines)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_on_one_machine_all_are_known_from_the_start(pods: Pods) -> None:
    first, second = pods.engines
    found = Directory(
        TOKEN,
        ["solver"],
        pools=["few"],
        workers=[first],
        engines={"solver": [second], "few": [first, second]},
    )
    found.open()
    await found.look()
    await found.watch()  # there is nothing to watch
    assert found.missing() == []
    assert list(found.workers) == [first]
    assert list(found.pools["few"]) == [first, second]
    assert not await asks(found.engines["solver"][second])
    assert pods.asked == []
    await found.close()


async def test_addresses_of_both_families_are_written_as_grpc_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6, kind, 6, "", ("fd00::2", port, 0, 0)),
            (socket.AF_INET, kind, 6, "", ("10.0.0.2", port)),
        ]

    async def getaddrinfo(self: Any, host: str, port: int, **how: Any) -> list[Any]:
        return resolve(host, port, **how)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    assert await addresses("engines.ns.svc.example.local.:7070") == [
        "10.0.0.2:7070",
        "[fd00::2]:7070",
    ]
