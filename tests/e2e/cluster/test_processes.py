"""What a job's pods are to the processes in them, ours and those that user code forgets."""

from __future__ import annotations

from .specs import team
from .stage import Stage

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


NAMES = """
import socket
from flexmarl.runtime.names import RESOLVER, with_whole_names
from flexmarl.runtime.settings import Settings
settings = with_whole_names(Settings(), RESOLVER.read_text())
for address in (settings.experience, *settings.trainers):
    host = address.rpartition(":")[0]
    print(host, socket.getaddrinfo(host, None)[0][4][0])
"""


def test_a_pod_reaps_orphans_of_user_code_and_asks_for_whole_names(stage: Stage) -> None:
    job = stage.job()
    job.submit(team(steps=100))
    job.trains(1)
    worker = job.pod("rollout-worker")
    assert job.inside(worker, "python3", "-c", ORPHANS).strip() == "0"
    found = [line.split() for line in job.inside(worker, "python3", "-c", NAMES).splitlines()]
    assert found
    assert [name for name, _ in found if not name.endswith(".")] == []
    pods = [*job.pods("experience"), *job.pods("trainer")]
    assert {address for _, address in found} == {pod["status"]["podIP"] for pod in pods}
