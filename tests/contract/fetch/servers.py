"""Servers to fetch from: a hub, git's own over HTTP, and a line that breaks."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

COMMIT = "c0ffee" * 6 + "c0de"
SLICE = 16 << 10
LOCAL = ("127.0.0.1", 0)


@dataclass
class Hub:
    """Answers as huggingface.co does, for the repository org/model; faults can be set."""

    files: dict[str, bytes]
    lfs: frozenset[str] = frozenset()
    token: str = ""
    cut_after: int = 0
    """Bytes of a file after which a connection breaks; 0: never."""
    pause: float = 0.0
    """Seconds between slices of a file."""
    ranges: bool = True
    damaged: int = 0
    """How many answers have a wrong byte in them."""
    announced: dict[str, int] = field(default_factory=dict)
    """Sizes that are not true."""
    refuse: list[int] = field(default_factory=list)
    """Statuses of the next answers."""
    url: str = ""
    served: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)
    """(file, offset) of each request for a file."""

    def siblings(self) -> list[dict[str, object]]:
        return [self._sibling(name, content) for name, content in self.files.items()]

    def _sibling(self, name: str, content: bytes) -> dict[str, object]:
        size = self.announced.get(name, len(content))
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        found: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob}
        if name in self.lfs:
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
        return found


@contextmanager
def serving_hub(hub: Hub, address: tuple[str, int] = LOCAL) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if hub.refuse:
                self._answer(hub.refuse.pop(0), b"no")
            elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._answer(401, b"no")
            else:
                self._serve(unquote(urlsplit(self.path).path))

        def _serve(self, path: str) -> None:
            import json

            about = "/api/models/org/model/revision/"
            content = f"/org/model/resolve/{COMMIT}/"
            if path.startswith(about) and path.removeprefix(about) in ("main", "v1", COMMIT):
                self._answer(200, json.dumps({"sha": COMMIT, "siblings": hub.siblings()}).encode())
            elif path.startswith(content) and path.removeprefix(content) in hub.files:
                self._file(path.removeprefix(content))
            else:
                self._answer(404, b"no")

        def _file(self, name: str) -> None:
            content = hub.files[name]
            wanted = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
            start = int(wanted) if hub.ranges else 0
            hub.asked.append((name, start))
            if hub.damaged:
                hub.damaged -= 1
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            sent = 0
            for at in range(start, len(content), SLICE):
                if hub.cut_after and sent >= hub.cut_after:
                    self.close_connection = True
                    return
                slice_ = content[at : at + SLICE]
                self.wfile.write(slice_)
                sent += len(slice_)
                hub.served += len(slice_)
                time.sleep(hub.pause)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with _serving(Handler, address) as url:
        hub.url = url
        yield hub


@contextmanager
def serving_git(root: Path, *, password: str = "") -> Iterator[str]:
    """The URL below which the repositories in `root` can be cloned; git itself answers."""
    import base64

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._backend(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._backend(body)

        def _backend(self, body: bytes) -> None:
            given = base64.b64decode(self.headers.get("Authorization", "").partition(" ")[2])
            if password and not given.endswith(f":{password}".encode()):
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                return
            parts = urlsplit(self.path)
            environment = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": parts.path,
                "QUERY_STRING": parts.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                env=environment,
                capture_output=True,
                check=True,
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200 OK").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with _serving(Handler) as url:
        yield url


@contextmanager
def _serving(
    handler: type[BaseHTTPRequestHandler], address: tuple[str, int] = LOCAL
) -> Iterator[str]:
    server = _Quiet(address, handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients are killed here on purpose


@contextmanager
def refusing(status: int, code: str) -> Iterator[str]:
    """An S3 that answers everything with that error."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with _serving(Handler, LOCAL) as url:
        yield url


@contextmanager
def breaking(port: int, after: int) -> Iterator[str]:
    """A way to the server at `port` on which every connection breaks after so many bytes."""

    def pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(SLICE):
                target.sendall(data)
                passed += len(data)
                if limit is not None and passed >= limit:
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                ends.extend((client, server))
                for arguments in ((client, server, None), (server, client, after)):
                    threads.append(threading.Thread(target=pump, args=arguments, daemon=True))
                    threads[-1].start()

    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in ends:
            end.close()


def upload(url: str, bucket: str, objects: Mapping[str, bytes]) -> None:
    scope = "key/20260101/us-east-1/s3/aws4_request"
    who = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, Signature=0"}
    httpx.put(f"{url}/{bucket}", headers=who).raise_for_status()
    for key, content in objects.items():
        httpx.put(f"{url}/{bucket}/{key}", content=content, headers=who).raise_for_status()
