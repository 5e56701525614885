"""`rediss://`: a real Valkey behind TLS, with certificates made for the test.

The embedded Valkey is built without TLS, so a relay ends it: what is tested is our side of it.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, fill, indexes
from tests.unit.experience.groups import POLICIES

from flexmarl.experience.store import Store
from flexmarl.runtime.errors import InvalidJobError


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem signed server.pem, for localhost; other.pem signed nothing."""
    path = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
            "-subj", f"/CN={name}", cwd=path,
        )  # fmt: skip
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=x", cwd=path)
    (path / "names").write_text("subjectAltName=DNS:localhost")
    openssl(
        "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
        "-extfile", "names", "-out", "server.pem", cwd=path,
    )  # fmt: skip
    return path


@asynccontextmanager
async def relay(server: Server, certificates: Path) -> AsyncIterator[int]:
    """The port of an encrypted relay to the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_unix_connection(f"{server.directory}/store.sock")
        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listener:
        yield int(listener.sockets[0].getsockname()[1])


def url(port: int, host: str = "localhost") -> str:
    return f"rediss://:p%22w%20%5C@{host}:{port}"


async def test_groups_pass_through_tls(server: Server, uid: str, certificates: Path) -> None:
    async with (
        relay(server, certificates) as port,
        Store(url(port), uid, POLICIES, ca_file=certificates / "ca.pem") as store,
    ):
        await store.check()
        await fill(store, 0, 3, tokens=100_000)
        assert await indexes(store, "solver", await epoch_of(store), 0) == [0, 1, 2]


@pytest.mark.parametrize(("authority", "host"), [
    (None, "localhost"), ("other.pem", "localhost"), ("ca.pem", "127.0.0.1"),
])  # fmt: skip
async def test_a_server_that_cannot_prove_who_it_is_is_refused(
    server: Server, uid: str, certificates: Path, authority: str | None, host: str
) -> None:
    ca_file = certificates / authority if authority else None
    async with (
        relay(server, certificates) as port,
        Store(url(port, host), uid, POLICIES, ca_file=ca_file) as store,
    ):
        with pytest.raises(InvalidJobError, match=r"not trusted .*store\.caFile names"):
            await store.check()


async def test_a_server_without_tls_is_said(uid: str, certificates: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR unknown command\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with Store(url(port), uid, POLICIES, ca_file=certificates / "ca.pem") as store:
            with pytest.raises(InvalidJobError, match="no TLS with the server"):
                await store.check()


@pytest.mark.parametrize("content", [None, "rubbish"])
async def test_an_unusable_authority_is_named(
    uid: str, content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidJobError, match=r"store\.caFile: .*ca\.pem"):
        Store("rediss://localhost", uid, POLICIES, ca_file=path)
