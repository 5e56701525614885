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


NAME = """
import socket
from flexmarl.runtime.names import RESOLVER, with_whole_names
from flexmarl.runtime.settings import Settings
settings = with_whole_names(Settings(), RESOLVER.read_text())
host = settings.experience.rpartition(":")[0]
print(host, socket.getaddrinfo(host, None)[0][4][0])
"""


def test_a_pod_reaps_orphans_of_user_code_and_asks_for_a_whole_name(stage: Stage) -> None:
    job = stage.job()
    job.submit(team(steps=100))
    job.trains(1)
    worker = job.pod("rollout-worker")
    assert job.inside(worker, "python3", "-c", ORPHANS).strip() == "0"
    name, address = job.inside(worker, "python3", "-c", NAME).split()
    assert name.endswith(".")
    service = stage.cluster.get(job.namespace, "service", f"{job.name}-experience")
    assert address == service["spec"]["clusterIP"]
