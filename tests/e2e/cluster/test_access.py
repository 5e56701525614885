"""Who is not of a job gets nothing out of its pods: for want of credentials, and of a way to them.

Two ports answer anybody who reaches them: metrics, which name no prompt and no secret, and the
health that the kubelet asks for. docs/decisions/0011 says why.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from .chart import Release
from .jobs import Job
from .kube import Kubernetes, restricted_pod, until
from .reading import Manifest
from .specs import slow
from .stage import Stage

GRPC = {"orchestrator", "rollout-worker", "engine", "experience", "trainer"}
METRICS, HEALTH, STORE = 9090, 8080, 6379
SLEEP = ["python3", "-c", "import time; time.sleep(3600)"]
LISTENING = """
import pathlib
found = set()
for table in ("tcp", "tcp6"):
    for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        host, port = local.split(":")
        if state == "0A" and host not in ("0100007F", "00000000000000000000000001000000"):
            found.add(int(port, 16))
print(*sorted(found))
"""
"""Ports on which a pod listens for others."""
KNOCK = """
import importlib, json, pkgutil, socket, sys, urllib.request
import grpc, redis
import flexmarl.contracts.v1 as v1

methods = [
    f"/{service.full_name}/{method.name}"
    for module in pkgutil.iter_modules(v1.__path__) if module.name.endswith("_pb2")
    for service in importlib.import_module(f"{v1.__name__}.{module.name}")
        .DESCRIPTOR.services_by_name.values()
    for method in service.methods
]

def calls(address, metadata):
    said = set()
    with grpc.insecure_channel(address) as channel:
        for method in methods:
            try:
                for answer in channel.unary_stream(method)(b"", timeout=10, metadata=metadata):
                    said.add("answered " + method)
            except grpc.RpcError as error:
                said.add(error.code().name)
    return sorted(said)

def health(address):
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10).hex()

def store(host, port):
    try:
        return repr(redis.Redis(host, port, socket_timeout=10).keys())
    except redis.RedisError as error:
        return type(error).__name__

def knock(kind, host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except (TimeoutError, ConnectionRefusedError):
        return "blocked"  # a firewall drops or rejects: both are usual
    address = f"{host}:{port}"
    if kind == "grpc":
        wrong = (("authorization", "Bearer wrong"),)
        return {"none": calls(address, ()), "wrong": calls(address, wrong), "up": health(address)}
    if kind == "store":
        return store(host, port)
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as page:
        return page.read().decode()

if sys.argv[1] == "open":
    print(json.dumps({f"{kind} {host} {port}": knock(kind, host, port)
                      for kind, host, port in json.loads(sys.argv[2])}))
else:
    print(json.dumps(sorted(f"{kind} {host} {port}" for kind, host, port in json.loads(sys.argv[2])
                            if knock("", host, port) != "blocked")))
"""

pytestmark = pytest.mark.alone
Door = tuple[str, str, int]
"""What stands behind it, host, port."""


def doors_of_job(job: Job) -> list[Door]:
    found: list[Door] = []
    running = [pod for pod in job.pods() if pod["status"]["phase"] == "Running"]
    for pod in running:
        role, host = pod["metadata"]["labels"]["flexmarl.io/role"], pod["status"]["podIP"]
        assert role in GRPC
        ports = {7070: "grpc", METRICS: "metrics"} | ({7071: "grpc"} if role == "trainer" else {})
        assert listening(job.cluster, job.namespace, pod["metadata"]["name"]) == set(ports), role
        found += [(kind, host, port) for port, kind in ports.items()]
    assert {pod["metadata"]["labels"]["flexmarl.io/role"] for pod in running} == GRPC
    return found


def doors_of_release(release: Release) -> list[Door]:
    found: list[Door] = []
    known = {"controller": {HEALTH: "health", METRICS: "metrics"}, "store": {STORE: "store"}}
    for component, ports in known.items():
        (pod,) = pods(release, component)
        assert listening(release.cluster, release.namespace, pod["metadata"]["name"]) == set(ports)
        found += [(kind, pod["status"]["podIP"], port) for port, kind in ports.items()]
    return found


def pods(release: Release, component: str) -> list[Manifest]:
    asked = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component={component}"
    found = release.cluster.reader.all("pod", release.namespace, asked)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def listening(cluster: Kubernetes, namespace: str, pod: str) -> set[int]:
    said = cluster.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", LISTENING)
    return set(map(int, said.split()))


def knock(cluster: Kubernetes, namespace: str, how: str, doors: list[Door]) -> Any:
    python = ("python3", "-c", KNOCK, how, json.dumps(doors))
    said = cluster.kubectl("-n", namespace, "exec", "stranger", "--", *python, seconds=300)
    return json.loads(said)


def refuses(door: str, said: Any) -> bool:
    kind = door.split(maxsplit=1)[0]
    if kind == "grpc":
        refused = [["UNAUTHENTICATED", "UNIMPLEMENTED"]] * 2
        return [said["none"], said["wrong"]] == refused and bool(said["up"] == "0801")
    if kind == "store":
        return bool(said == "AuthenticationError")
    return "# HELP" in said if kind == "metrics" else True


def test_strangers_are_refused_by_every_port_and_with_policies_do_not_reach_one(
    stage: Stage,
) -> None:
    cluster, release, job = stage.cluster, stage.release, stage.job()
    strangers = (job.namespace, stage.namespace())
    for where in strangers:
        cluster.apply(where, restricted_pod("stranger", stage.images["slim"], command=SLEEP))
    release.upgrade(networkPolicy={"enabled": False})
    try:
        job.submit(slow(steps=100, speed=5))  # still there after two upgrades of the release
        job.reaches("Running")
        doors = [*doors_of_job(job), *doors_of_release(release)]
        secret = cluster.get(job.namespace, "secret", "team-job")["data"]
        for where in strangers:
            cluster.ready(where, "stranger")
            answers = knock(cluster, where, "open", doors)
            assert len(answers) == len(doors)
            assert {door: said for door, said in answers.items() if not refuses(door, said)} == {}
            assert not any(value in json.dumps(answers) for value in plain(secret))
    finally:
        release.upgrade()
    doors = [*doors_of_job(job), *doors_of_release(release)]
    for where in strangers:
        until(partial(_shut, cluster, where, doors), "nothing is reached", 90)
    job.kill("engine")  # which everybody connects to anew
    job.trains(job.status()["step"] + 3)


def _shut(cluster: Kubernetes, where: str, doors: list[Door]) -> bool:
    """Whether a pod of that namespace reaches none of them."""
    return bool(knock(cluster, where, "closed", doors) == [])


def plain(secret: Mapping[str, str]) -> list[str]:
    return [base64.b64decode(value).decode() for value in secret.values()]
