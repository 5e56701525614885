"""The script that the pod of `helm test` runs, against an API server that answers as told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.contract.chart.readme import CHART

SCRIPT = CHART / "files/await_job.py"
Run = Callable[..., subprocess.CompletedProcess[str]]
HERE = """
import pathlib, runpy, ssl, sys
directory, address, script = sys.argv[1:4]
ssl.create_default_context = lambda cafile: None  # the server of this test speaks plain HTTP
found = runpy.run_path(script)
found["main"].__globals__.update(ACCOUNT=pathlib.Path(directory), API=address)
sys.exit(found["main"](*sys.argv[4:]))
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs the script while the job has these statuses, one per look; None: no answer, "broken":
    one that is never whole."""
    statuses: list[Any] = []
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            body = json.dumps({"status": status}).encode()
            missing = 100 if status == "broken" else 0
            self.send_response(503 if status is None else 200)
            self.send_header("Content-Length", str(len(body) + missing))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "token").write_text("secret")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def go(*given: Any, seconds: int = 60) -> subprocess.CompletedProcess[str]:
            statuses[:] = given
            address = f"http://127.0.0.1:{server.server_port}/apis"
            command = [sys.executable, "-c", HERE, str(tmp_path), address, str(SCRIPT)]
            done = subprocess.run(
                [*command, "blue", "job", str(seconds)], capture_output=True, text=True, check=False
            )
            assert set(asked) == {("/apis/namespaces/blue/marljobs/job", "Bearer secret")}
            return done

        yield go
        server.shutdown()
        thread.join()


def test_it_ends_well_with_the_job(run: Run) -> None:
    done = run({}, {"phase": "Running"}, None, {"phase": "Complete"})
    assert done.returncode == 0
    told = [line for line in done.stdout.splitlines() if line.startswith("MARLJob")]
    assert told == [f"MARLJob blue/job: {phase}: " for phase in ("Pending", "Running", "Complete")]
    assert "no answer yet: HTTP Error 503" in done.stdout


def test_it_fails_with_the_job_and_shows_why(run: Run) -> None:
    done = run({"phase": "Failed", "failure": {"message": "no slot"}})
    assert done.returncode == 1
    assert "no slot" in done.stdout
    assert "kubectl -n blue describe marljob job" in done.stdout


def test_it_tells_what_a_job_waits_for_while_it_waits(run: Run) -> None:
    waiting = {"phase": "Starting", "reason": "ClaimPending", "message": "no StorageClass"}
    more = {**waiting, "message": "still none"}
    done = run(waiting, more, {"phase": "Complete"})
    assert done.stdout.splitlines() == [
        "MARLJob blue/job: Starting, ClaimPending: no StorageClass",
        "MARLJob blue/job: Complete: ",
    ]


def test_an_answer_that_breaks_off_is_none(run: Run) -> None:
    done = run("broken", {"phase": "Complete"})
    assert done.returncode == 0
    assert "no answer yet" in done.stdout


def test_it_does_not_wait_for_ever(run: Run) -> None:
    done = run({"phase": "Pending"}, seconds=1)
    assert done.returncode == 1
    assert "not Complete" in done.stdout
