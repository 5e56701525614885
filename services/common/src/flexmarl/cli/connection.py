"""The cluster that a command asks: that of a kubeconfig's context, or the one this pod is of."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from flexmarl.cli.cluster import Cluster, Server
from flexmarl.cli.commands import target
from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.kubeconfig import Context, Entry, context_of
from flexmarl.cli.login import Login, login_of

ResultT = TypeVar("ResultT")


@asynccontextmanager
async def connected(namespace: str | None, context: str | None) -> AsyncIterator[Cluster]:
    """CommandError: there is no cluster to ask."""
    meant = _context(context)
    try:
        login = await login_of(meant)
        server = _server(meant.cluster, login)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise CommandError(
            f"The kubeconfig {target.kubeconfig()} is damaged, or names no cluster to ask: "
            f"{error}. Mend it, or set KUBECONFIG to another"
        ) from error
    connector = aiohttp.TCPConnector(limit=0)  # every log that is followed has one
    async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
        yield Cluster(session, server, namespace or meant.namespace)


def ask(call: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What it says. Whatever ends a command does so as Ctrl-C, also where that is ignored, as in
    the background of a script: a pod that it has made goes, too."""
    ended = False

    async def called() -> ResultT:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal ended
            ended = True
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores one of them
                    loop.add_signal_handler(number, end)
        return await call

    try:
        return asyncio.run(called())
    except asyncio.CancelledError:
        if ended:
            raise KeyboardInterrupt from None
        raise


def _context(name: str | None) -> Context:
    places = target.kubeconfigs()
    if places:
        return context_of(places, name)
    if name:
        raise CommandError(f'There is no kubeconfig that could have a context "{name}"', INVALID)
    if target.in_pod():
        return _of_pod()
    raise CommandError(
        f"There is no cluster to ask: no kubeconfig at {target.kubeconfig()}. Set KUBECONFIG, or "
        "look at a run of this machine"
    )


def _of_pod() -> Context:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    server = (
        f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    )
    return Context(
        Entry({"server": server, "certificate-authority": "ca.crt"}, target.ACCOUNT),
        Entry({"tokenFile": "token"}, target.ACCOUNT),
        (target.ACCOUNT / "namespace").read_text().strip(),
    )


def _server(cluster: Entry, login: Login) -> Server:
    fields = cluster.fields
    url = str(fields["server"]).rstrip("/")
    options: dict[str, Any] = {}
    if url.startswith("https:"):
        options["ssl"] = _tls(cluster, login)
        if fields.get("tls-server-name"):
            options["server_hostname"] = str(fields["tls-server-name"])
    if fields.get("proxy-url"):
        options["proxy"] = str(fields["proxy-url"])
    return Server(url, login, options)


def _tls(cluster: Entry, login: Login) -> ssl.SSLContext:
    authority = cluster.data("certificate-authority")
    found = ssl.create_default_context(cadata=authority.decode() if authority else None)
    found.verify_flags &= ~ssl.VERIFY_X509_STRICT  # clusters' own authorities seldom are
    if cluster.fields.get("insecure-skip-tls-verify"):
        found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    if login.certificate is not None:
        with tempfile.TemporaryDirectory() as name:  # which it reads from files alone
            certificate, key = Path(name) / "certificate", Path(name) / "key"
            for path, content in zip((certificate, key), login.certificate, strict=True):
                path.write_bytes(content)
            found.load_cert_chain(certificate, key)
    return found
