"""Calls on streams that stay open, over a real loopback channel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flexmarl.runtime.errors import NotFoundError
from flexmarl.runtime.exchanges import Exchanges
from flexmarl.runtime.grpc import TOKEN_KEY, channel, exchange_handler, serving

METHOD = "/test.Test/Say"


class Service:
    """Answers what it is asked; questions that begin with `wait` once it is told to."""

    def __init__(self) -> None:
        self.entered, self.release, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def say(self, request: Any, context: Any) -> bytes:
        if request.startswith(b"none"):
            raise NotFoundError("no such thing")
        if request.startswith(b"wait"):
            self.entered.set()
            try:
                await self.release.wait()
            finally:
                self.left.set()
        return bytes(request)

    def register(self, server: grpc.aio.Server) -> None:
        server.add_registered_method_handlers("test.Test", {"Say": exchange_handler(self.say)})


class Caller:
    def __init__(self, link: grpc.aio.Channel, token: str = "") -> None:
        method: Callable[..., Any] = link.stream_stream(METHOD)
        self.opened = 0
        self._metadata = ((TOKEN_KEY, f"Bearer {token}"),) if token else None

        def opening(**options: Any) -> Any:
            self.opened += 1
            return method(**options)

        self._exchanges: Exchanges[bytes, bytes] = Exchanges(opening)

    async def ask(self, what: bytes, seconds: float = 60) -> bytes:
        return await self._exchanges(what, timeout=seconds, metadata=self._metadata)


@asynccontextmanager
async def served(
    service: Service, address: str = "127.0.0.1:0", **options: Any
) -> AsyncIterator[Caller]:
    async with serving(service.register, address, **options) as bound, channel(bound) as link:
        yield Caller(link)


async def refused(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def patient(caller: Caller, what: bytes) -> bytes:
    while True:
        try:
            return await caller.ask(what)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.05)


async def again_and_again(caller: Caller, what: bytes) -> None:
    while True:
        await caller.ask(what)


async def test_calls_one_after_another_share_a_stream_and_those_at_once_have_one_each() -> None:
    async with served(Service()) as caller:
        for number in range(20):
            assert await caller.ask(b"%d" % number) == b"%d" % number
        assert caller.opened == 1
        asked = [b"%d" % number for number in range(8)]
        for _ in range(5):
            assert await asyncio.gather(*map(caller.ask, asked)) == asked
        assert caller.opened == 8


async def test_an_error_reaches_its_caller_with_code_and_words_and_no_other() -> None:
    async with served(Service()) as caller:
        for _ in range(3):
            assert await refused(caller.ask(b"none")) == (
                grpc.StatusCode.NOT_FOUND,
                "no such thing",
            )
            assert await caller.ask(b"some") == b"some"


async def test_a_stream_without_the_jobs_token_is_refused() -> None:
    register = Service().register
    async with (
        serving(register, "127.0.0.1:0", token="secret") as address,
        channel(address) as link,
    ):
        for token in ("", "other"):
            code, _ = await refused(Caller(link, token).ask(b"some"))
            assert code == grpc.StatusCode.UNAUTHENTICATED
        assert await Caller(link, "secret").ask(b"some") == b"some"


async def test_the_answer_to_a_call_that_was_given_up_goes_to_no_other() -> None:
    service = Service()
    async with served(service) as caller:
        given_up = asyncio.ensure_future(caller.ask(b"wait"))
        await service.entered.wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        async with asyncio.timeout(60):
            await service.left.wait()  # the service hears of it
        service.release.set()
        assert await caller.ask(b"some") == b"some"


async def test_a_call_ends_at_its_deadline_and_the_next_one_is_answered() -> None:
    service = Service()
    async with served(service) as caller:
        code, words = await refused(caller.ask(b"wait", seconds=0.2))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert words == "no answer within 0.2 s"
        service.release.set()
        assert await caller.ask(b"some") == b"some"


async def test_idle_streams_do_not_hold_up_a_server_that_drains_but_calls_may_finish() -> None:
    service = Service()
    async with asyncio.timeout(60):
        async with serving(service.register, "127.0.0.1:0", drain_seconds=600) as address:
            link = channel(address)
            caller = Caller(link)
            await asyncio.gather(*(caller.ask(b"some") for _ in range(4)))
            asked = asyncio.ensure_future(caller.ask(b"wait"))
            await service.entered.wait()
            asyncio.get_running_loop().call_later(0.1, service.release.set)
        assert await asked == b"wait"
        code, _ = await refused(caller.ask(b"some"))
        assert code == grpc.StatusCode.UNAVAILABLE
        await link.close()


async def test_a_service_that_was_started_again_is_called_again(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/socket"
    async with channel(address) as link:
        caller = Caller(link)
        for _ in range(2):
            async with serving(Service().register, address), asyncio.timeout(60):
                assert await patient(caller, b"some") == b"some"


class Broken:
    """A stream that ended while a message was on its way: gRPC says INTERNAL, whatever ended it."""

    def __init__(self) -> None:
        self.cancelled = False

    def done(self) -> bool:
        return False

    def cancel(self) -> bool:
        self.cancelled = True
        return True

    async def write(self, request: bytes) -> None:
        words = "Internal error from Core"
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, empty, empty, words)


async def test_what_could_not_be_written_may_be_sent_again() -> None:
    stream: Any = Broken()
    exchanges: Exchanges[bytes, bytes] = Exchanges(lambda **_: stream)
    call = exchanges(b"some", timeout=60, metadata=None)
    assert await refused(call) == (grpc.StatusCode.UNAVAILABLE, "the service ended the stream")
    assert stream.cancelled


async def test_a_service_that_dies_in_the_middle_of_a_message_is_away(tmp_path: Path) -> None:
    """Wherever it is at that moment: nothing else than `away` is tried again."""
    large, address = bytes(48 << 20), f"unix://{tmp_path}/socket"
    for number in range(6):
        server = await asyncio.create_subprocess_exec(sys.executable, __file__, address)
        try:
            async with channel(address) as link:
                caller = Caller(link)
                async with asyncio.timeout(60):
                    assert await patient(caller, b"some") == b"some"
                asked = asyncio.ensure_future(again_and_again(caller, large))
                await asyncio.sleep(0.004 * number)
                server.kill()
                async with asyncio.timeout(60):
                    code, _ = await refused(asked)
                assert code == grpc.StatusCode.UNAVAILABLE
        finally:
            with suppress(ProcessLookupError):
                server.kill()
            await server.wait()


async def serve_for_ever(address: str) -> None:
    async with serving(Service().register, address):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_for_ever(sys.argv[1]))
