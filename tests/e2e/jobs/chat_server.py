"""A real HTTP server that speaks chat completions, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer(ThreadingHTTPServer):
    """Answers `VERDICT` to every request but the first, which finds it overloaded."""

    VERDICT = "the judge has spoken"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.requests.append(body | {"path": self.path})
            self.server.keys.add(self.headers["authorization"])
            first = len(self.server.requests) == 1
        message = {"role": "assistant", "content": ChatServer.VERDICT}
        answer: dict[str, Any] = {"error": {"message": "overloaded"}}
        if not first:
            usage = {"prompt_tokens": 7, "completion_tokens": 5}
            answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        data = json.dumps(answer).encode()
        self.send_response(503 if first else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Not on the terminal."""


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
