"""Processes of a job's pods beside ours: what user code starts and forgets."""

from __future__ import annotations

import pytest

from .specs import team
from .stage import Stage

pytestmark = pytest.mark.beside
ORPHANS = """
import os, pathlib, time
for _ in range(20):  # a child's child outlives it, and nobody who is left waits for that one
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(0.2)
        os._exit(0)
    os.waitpid(child, 0)
end = time.monotonic() + 30
while time.monotonic() < end:
    time.sleep(0.5)
    stats = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
    dead = [stat for stat in stats if stat.rpartition(")")[2].split()[0] == "Z"]
    if not dead:
        break
print(len(dead))
"""


def test_orphans_of_user_code_do_not_pile_up_in_its_pod(stage: Stage) -> None:
    job = stage.job()
    job.submit(team(steps=100))
    job.trains(1)
    python = ("-c", "main", "--", "python3", "-c", ORPHANS)
    pod = job.pod("rollout-worker")
    assert stage.cluster.kubectl("-n", job.namespace, "exec", pod, *python).strip() == "0"
