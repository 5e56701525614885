"""In a pod of the tests: objects as S3 has them, and a repository over HTTP.

    python3 serving.py OBJECTS CODE

OBJECTS and CODE are folders: the bucket `team` holds the files of the one, `team.git` those of the
other. Every object that is read is a line of the output.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from wsgiref.simple_server import make_server
from xml.sax.saxutils import escape

from dulwich import porcelain
from dulwich.repo import Repo
from dulwich.server import BackendRepo, DictBackend
from dulwich.web import WSGIRequestHandlerLogger, WSGIServerLogger, make_wsgi_chain

S3_PORT, GIT_PORT = 9000, 9001
BUCKET, KEY = "team", "a-key-that-reads"
MODIFIED = "2026-01-01T00:00:00.000Z"


def main(objects: Path, code: Path) -> None:
    held = {path.name.replace("--", "/"): path.read_bytes() for path in _files(objects)}
    server = ThreadingHTTPServer(("0.0.0.0", S3_PORT), s3(held))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served: dict[str, BackendRepo] = {"/team.git": repository(code)}
    make_server(
        "0.0.0.0",
        GIT_PORT,
        make_wsgi_chain(DictBackend(served)),
        handler_class=WSGIRequestHandlerLogger,
        server_class=WSGIServerLogger,
    ).serve_forever()


def s3(held: dict[str, bytes]) -> type[BaseHTTPRequestHandler]:
    """For who signs with KEY; the signature itself is not looked at."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            bucket, _, key = unquote(asked.path).removeprefix("/").partition("/")
            if f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
                self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            elif bucket != BUCKET:
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif not key:
                [prefix] = parse_qs(asked.query).get("prefix", [""])
                self._answer(200, _listed(held, prefix))
            elif key not in held:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._object(key, held[key])

        def do_HEAD(self) -> None:
            self.do_GET()

        def _object(self, key: str, content: bytes) -> None:
            about = {"ETag": _tag(content), "Last-Modified": formatdate(0, usegmt=True)}
            if self.headers.get("If-Match", about["ETag"]) != about["ETag"]:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            if self.command == "GET":
                sys.stdout.write(f"{key}\n")  # whole lines: several threads write
                sys.stdout.flush()
            start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].partition("-")[0])
            last = len(content) - 1
            status = 206 if "Range" in self.headers else 200
            if status == 206:
                about["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
            self._answer(status, content[start:], about)

        def _answer(self, status: int, body: bytes, about: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(about or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def repository(code: Path) -> Repo:
    """One commit of all files, on the branch main."""
    repo = Repo.init("/tmp/team", mkdir=True, default_branch=b"main")
    names = [path.name for path in _files(code)]
    for name in names:
        Path("/tmp/team", name).write_bytes((code / name).read_bytes())
    porcelain.add(repo, [f"/tmp/team/{name}" for name in names])
    who = b"a <a@example.org>"
    porcelain.commit(repo, message=b"first", author=who, committer=who)
    return repo


def _files(folder: Path) -> list[Path]:
    """Of a mounted ConfigMap, whose own links are folders."""
    return [path for path in folder.iterdir() if path.is_file()]


def _listed(held: dict[str, bytes], prefix: str) -> bytes:
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(held[key])}</Size>"
        f"<LastModified>{MODIFIED}</LastModified><ETag>{escape(_tag(held[key]))}</ETag></Contents>"
        for key in sorted(held)
        if key.startswith(prefix)
    )
    closed = "<IsTruncated>false</IsTruncated></ListBucketResult>"
    return f"<ListBucketResult>{contents}{closed}".encode()


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
