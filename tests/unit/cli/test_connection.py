"""Which cluster a kubeconfig names, and what is said when it names none or nobody answers."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from flexmarl.cli import cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.kubeconfig import context_of
from flexmarl.cli.login import login_of
from flexmarl.cli.refusals import UnreachableError

FAILS = "import sys; print('expired', file=sys.stderr); sys.exit(3)"
NOWHERE = "https://127.0.0.1:9"


def config(*contexts: str, current: str | None = None, **more: Any) -> dict[str, Any]:
    """Contexts whose namespaces are called as they are."""
    found: dict[str, Any] = {
        "contexts": [
            {"name": one, "context": {"cluster": "c", "user": "u", "namespace": f"of-{one}"}}
            for one in contexts
        ],
        "clusters": [{"name": "c", "cluster": {"server": NOWHERE}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    return found | ({} if current is None else {"current-context": current}) | more


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return tmp_path


async def namespace(context: str | None = None, given: str | None = None) -> str:
    async with connected(given, context) as found:
        return found.namespace


async def test_a_context_can_be_named_where_none_is_current(folder: Path) -> None:
    (folder / "kubeconfig").write_text(json.dumps(config("a", "b")))
    assert await namespace("b") == "of-b"
    assert await namespace("b", "mine") == "mine"
    with pytest.raises(CommandError, match=r"no current context: name one by --context.* a, b$"):
        await namespace()
    with pytest.raises(CommandError, match=r'no context "c".* it has a, b$') as raised:
        await namespace("c")
    assert raised.value.exit_code == INVALID
    without = config("a", current="a")
    del without["contexts"][0]["context"]["namespace"]
    (folder / "kubeconfig").write_text(json.dumps(without))
    assert await namespace() == "default"


async def test_of_several_files_the_first_that_says_something_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {
        "nothing": "",
        "unset": yaml.safe_dump(config("x", current="")),
        "one": yaml.safe_dump(config("a", current="a")),
        "two": yaml.safe_dump(config("b", current="b")),
    }.items():
        (folder / name).write_text(content)
    names = ("away", "nothing", "", "unset", "one", "two")
    monkeypatch.setenv("KUBECONFIG", ":".join(str(folder / one) if one else "" for one in names))
    assert await namespace() == "of-a"
    assert await namespace("b") == "of-b"


async def test_without_a_kubeconfig_there_is_no_cluster(folder: Path) -> None:
    with pytest.raises(CommandError, match=r"no kubeconfig at .*Set KUBECONFIG"):
        await namespace()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "clusters: [", "contexts: 7", "- a\n- b\n", "contexts:\n- a\n", "\0", "\xff"],
)
async def test_a_kubeconfig_that_is_none_is_told(folder: Path, text: str) -> None:
    (folder / "kubeconfig").write_text(text, encoding="latin-1")
    with pytest.raises(CommandError, match=r"The kubeconfig .* (damaged|names no cluster)"):
        await namespace()


@pytest.mark.parametrize(
    "user",
    [
        {"client-certificate-data": "%"},
        {"client-certificate": "/nowhere", "client-key": "/nowhere"},
        {"client-certificate-data": "eA==", "client-key-data": "eA=="},
        {"exec": {"args": []}},
    ],
)
async def test_a_kubeconfig_whose_user_is_damaged_is_told(
    folder: Path, user: dict[str, Any]
) -> None:
    made = config("a", current="a", users=[{"name": "u", "user": user}])
    (folder / "kubeconfig").write_text(json.dumps(made))
    with pytest.raises(CommandError, match=r"The kubeconfig .* (damaged|names no cluster)"):
        await namespace()


async def test_without_a_kubeconfig_there_is_no_context(folder: Path) -> None:
    with pytest.raises(CommandError, match='no kubeconfig that could have a context "a"'):
        await namespace("a")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/nowhere/login"], "cannot be run: No such file"),
        (
            [sys.executable, "-c", "import sys; print('expired', file=sys.stderr); sys.exit(3)"],
            "exit code 3",
        ),
        ([sys.executable, "-c", "print('{}')"], "gave neither a token nor a certificate"),
        ([sys.executable, "-c", "print('token: x')"], "gave neither a token nor a certificate"),
    ],
)
async def test_a_plugin_that_does_not_log_in_ends_the_command_and_is_heard(
    folder: Path, words: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": words[0]}
    user = {"exec": plugin | {"args": words[1:]}}
    made = config("a", current="a", users=[{"name": "u", "user": user}])
    (folder / "kubeconfig").write_text(json.dumps(made))
    with pytest.raises(CommandError, match=f"by which your kubeconfig logs in, .*{says}"):
        await namespace()
    assert capfd.readouterr().err == ("expired\n" if "3" in says else "")


@pytest.mark.parametrize("lacking", ["clusters", "users"])
async def test_what_a_context_names_and_is_not_there_is_told(folder: Path, lacking: str) -> None:
    (folder / "kubeconfig").write_text(json.dumps(config("a", current="a", **{lacking: None})))
    with pytest.raises(CommandError, match=f"no {lacking[:-1]} .* which its context .a. names"):
        await namespace()


async def test_an_older_kind_of_login_gives_its_token(folder: Path) -> None:
    token = f"x.{base64.b64encode(b'{}').decode().rstrip('=')}.x"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    made = config("a", current="a", users=[{"name": "u", "user": user}])
    (folder / "kubeconfig").write_text(json.dumps(made))
    login = await login_of(context_of([folder / "kubeconfig"], None))
    assert await login.headers() == {"Authorization": f"Bearer {token}"}


async def test_a_token_in_a_file_is_read_whenever_it_is_needed(folder: Path) -> None:
    made = config("a", current="a", users=[{"name": "u", "user": {"tokenFile": "token"}}])
    (folder / "kubeconfig").write_text(json.dumps(made))
    login = await login_of(context_of([folder / "kubeconfig"], None))
    for token in ("one", "two"):
        (folder / "token").write_text(f"{token}\n")
        assert await login.headers() == {"Authorization": f"Bearer {token}"}
    (folder / "token").unlink()
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        await login.headers()


@asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[str]:
    """Somebody who says that to whatever is asked, or nothing."""

    async def serve(_: web.Request) -> web.Response:
        if answer is None:
            await asyncio.sleep(60)
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(folder: Path, server: str) -> CommandError:
    """What is said of a job there."""
    made = config("a", current="a", clusters=[{"name": "c", "cluster": {"server": server}}])
    (folder / "kubeconfig").write_text(json.dumps(made))
    with pytest.raises(CommandError) as raised:
        async with connected(None, None) as found:
            await found.find_job("tiny")
    return raised.value


async def test_nobody_there_is_told_in_words_alone(folder: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{taken.getsockname()[1]}"
        error = await asked(folder, server)
    assert isinstance(error, UnreachableError)
    assert str(error).startswith(f"The cluster at {server} cannot be reached: Connect call failed")
    assert "object" not in str(error)


async def test_a_server_that_says_nothing_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SECONDS", 0.2)
    async with serving(None) as server:
        error = await asked(folder, server)
    assert isinstance(error, UnreachableError)
    assert "no answer within 0.2 s" in str(error)


async def test_whatever_is_asked_goes_through_the_proxy(folder: Path) -> None:
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.readline())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        about = {"server": "https://away.invalid:6443", "proxy-url": proxy}
        made = config("a", current="a", clusters=[{"name": "c", "cluster": about}])
        (folder / "kubeconfig").write_text(json.dumps(made))
        async with connected(None, None) as found:
            with pytest.raises(UnreachableError, match="Bad Gateway"):
                await found.find_job("tiny")
            with pytest.raises(UnreachableError, match="Bad Gateway"):
                await anext(found.output("tiny-orchestrator-x", "main", ["true"]))
    assert said == [b"CONNECT away.invalid:6443 HTTP/1.1\r\n"] * 2


@pytest.mark.parametrize("page", [b"<html>log in", b"{}", b"[]", b""])
async def test_what_is_no_api_server_is_told(folder: Path, page: bytes) -> None:
    async with serving(page) as server:
        error = await asked(folder, server)
    assert f"{server} is no API server" in str(error)
