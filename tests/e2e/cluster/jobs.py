"""A MARLJob on the cluster, as whoever submitted it sees it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .kube import Kubernetes, restricted_pod, until
from .reading import Manifest
from .specs import code

PATIENCE = 300.0
"""Seconds that anything may take; on two quiet cores a whole job takes less than half a minute."""
CHILDREN = (
    "pod",
    "job",
    "deployment",
    "replicaset",
    "statefulset",
    "service",
    "secret",
    "configmap",
    "serviceaccount",
    "networkpolicy",
)
RUN = """
import json, pathlib, sys
run = pathlib.Path(sys.argv[1])
def lines(name):
    path = run / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\\n")]
saved = sorted(run.glob("checkpoints/*/manifest.json"))
state = json.loads(saved[-1].read_text()) if saved else {"policies": {}}
summary = run / "summary.json"
print(json.dumps({
    "progress": json.loads((run / "progress.json").read_text()),
    "metrics": lines("metrics.jsonl"),
    "checksums": {name: policy["checksum"] for name, policy in state["policies"].items()},
    "summary": json.loads(summary.read_text()) if summary.exists() else {},
}))
"""
KILL = """
import os, pathlib, signal, sys
for entry in pathlib.Path("/proc").iterdir():
    if entry.name.isdecimal() and int(entry.name) != os.getpid():
        words = (entry / "cmdline").read_bytes().split(bytes(1))
        if words[-3:-1] == [b"serve", sys.argv[1].encode()]:
            os.kill(int(entry.name), signal.SIGKILL)
"""
METRICS = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9090').read().decode())"
MAIN = "main"
Life = tuple[str, str, int]
"""A pod's name and uid, and how often its process was started again."""


@dataclass
class Job:
    cluster: Kubernetes
    images: Mapping[str, str]
    namespace: str
    name: str = "team"
    uid: str = ""
    """Of its first submission, or of the last."""
    files: dict[str, Any] = field(default_factory=dict)
    """What its claim held when it was read last."""

    def submit(self, spec: Mapping[str, Any]) -> None:
        document = {
            "apiVersion": "flexmarl.io/v1alpha1",
            "kind": "MARLJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        }
        self.cluster.apply(self.namespace, code())
        self.cluster.kubectl("create", "-f", "-", stdin=json.dumps(document))
        self.uid = self.manifest()["metadata"]["uid"]

    def change(self, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        self._kubectl("patch", "marljob", self.name, "--type=merge", "-p", patch)

    def delete(self) -> None:
        self._kubectl("delete", "marljob", self.name)

    def manifest(self) -> Manifest:
        return self.cluster.get(self.namespace, "marljob", self.name)

    def status(self) -> dict[str, Any]:
        return dict(self.manifest().get("status", {}))

    def table(self) -> list[list[str]]:
        """Words of the head and of the line by which kubectl shows it."""
        said = self._kubectl("get", "mj", self.name, "-o", "wide")
        return [line.split() for line in said.splitlines()]

    def pods(self, role: str = "", **labels: str) -> list[Manifest]:
        wanted = {"job": self.name, **({"role": role} if role else {}), **labels}
        asked = ",".join(f"flexmarl.io/{key}={value}" for key, value in wanted.items())
        return self.cluster.reader.all("pod", self.namespace, asked)

    def pod(self, role: str) -> str:
        """The name of one that is not on its way out, as soon as there is one."""
        return self._life(role)[0]

    def _life(self, role: str, container: str = MAIN) -> Life:
        found: list[Life] = []

        def there() -> bool:
            found[:] = self._lives(role, container)
            phase = self.status().get("phase")
            assert found or phase not in ("Complete", "Failed"), f"no {role}: the job is {phase}"
            return bool(found)

        self.until(there, f"a running {role}")
        return found[0]

    def _lives(self, role: str, container: str = MAIN) -> list[Life]:
        """Of the role's pods that are not on their way out and whose process runs."""
        pods = [pod for pod in self.pods(role) if "deletionTimestamp" not in pod["metadata"]]
        return [
            (pod["metadata"]["name"], pod["metadata"]["uid"], int(one["restartCount"]))
            for pod in pods
            for kind in ("containerStatuses", "initContainerStatuses")
            for one in pod["status"].get(kind, ())
            if one["name"] == container and "running" in one["state"]
        ]

    def until(
        self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE
    ) -> dict[str, Any]:
        """Wait for it; with what the job says of itself if it does not come. The status then."""
        until(condition, what, seconds, self._said)
        return self.status()

    def _said(self) -> object:
        """It may be gone."""
        found = self.cluster.reader.one("marljob", self.namespace, self.name)
        return (found or {}).get("status")

    def reaches(self, phase: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The status once the job is in this phase; it may not end in another."""

        def there() -> bool:
            status = self.status()
            now = status.get("phase")
            ended = now in ("Complete", "Failed") and now != phase
            assert not ended, f"{now} instead of {phase}: {status}"
            return bool(now == phase)

        return self.until(there, phase, seconds)

    def trains(self, step: int) -> int:
        """Waits until it has finished so many steps; how many those are by then."""

        def there() -> bool:
            status = self.status()
            assert status.get("phase") != "Failed", status
            return int(status.get("step", 0)) >= step

        return int(self.until(there, f"step {step}")["step"])

    def completes(self, seconds: float = PATIENCE) -> Job:
        """With its files read."""
        self.reaches("Complete", seconds)
        self.read()
        return self

    def without_pods(self, seconds: float = 60) -> None:
        self.until(lambda: not self.pods(), "no pods", seconds)

    def children(self) -> list[str]:
        """Names of what lives because of the job."""
        asked = f"flexmarl.io/job={self.name}"
        return [
            f"{kind}/{one['metadata']['name']}"
            for kind in CHILDREN
            for one in self.cluster.reader.all(kind, self.namespace, asked)
        ]

    def kill(self, role: str, sidecar: str = "") -> None:
        """Its process or its pod's sidecar, with -9, from inside the pod; until it is seen to have
        ended."""
        container = sidecar or MAIN
        life = self._life(role, container)
        process = sidecar or role
        said = self.inside(life[0], "python3", "-c", KILL, process)  # may end with what it kills
        self.until(
            lambda: life not in self._lives(role, container), f"the end of {life}: {said}", 60
        )

    def lose(self, role: str) -> None:
        """Its pod, at once, as if the node were gone."""
        life = self._life(role)
        self._kubectl("delete", "pod", life[0], "--force", "--grace-period=0")
        self.until(lambda: life not in self._lives(role), f"the loss of {life}", 60)

    def run_dir(self) -> str:
        return f"/run/{self.name}-{self.uid[:8]}"

    def read(self) -> dict[str, Any]:
        """Its metrics and checkpoints from the claim, by a pod, which need not be one of ours."""
        said = self.beside_claim(
            "reads", "slim", command=["python3", "-c", RUN, self.run_dir()], claim=self.claim()
        )
        self.files = json.loads(said)
        return self.files

    def claim(self) -> str:
        return f"{self.name}-run"

    def beside_claim(self, name: str, image: str, *, command: list[str], claim: str) -> str:
        """The output of a command in a pod that has the job's claim at /run."""
        name = f"{name}-{secrets.token_hex(3)}"
        pod = restricted_pod(name, self.images[image], command=command)
        volume = {"name": "run", "persistentVolumeClaim": {"claimName": claim}}
        pod["spec"]["volumes"].append(volume)
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": "run", "mountPath": "/run"})
        self.cluster.apply(self.namespace, pod)
        said = self.cluster.complete(self.namespace, name, seconds=PATIENCE)
        self._kubectl("delete", "pod", name, "--wait=false")
        return said

    def step(self) -> int:
        """How far it is, from its own file: nobody else may know."""
        path, said = f"/flexmarl{self.run_dir()}/progress.json", list[int]()

        def read() -> bool:
            with suppress(json.JSONDecodeError):  # a kubelet that had no time says something else
                said[:] = [json.loads(self.inside(self.pod("orchestrator"), "cat", path))["step"]]
            return bool(said)

        self.until(read, f"what stands in {path}", 60)
        return said[0]

    def speaks(self, role: str) -> None:
        """Waits until its process has a log."""

        def said() -> bool:
            logs = self._kubectl("logs", self.pod(role), "-c", MAIN, check=False)
            return f'"process": "{role}"' in logs

        self.until(said, f"a log of {role}", 60)

    def sampled(self, engine: str) -> float:
        """Tokens, as the engine in this pod counts them."""
        said = self.inside(engine, "python3", "-c", METRICS)
        name = "flexmarl_engine_generated_tokens_total "
        return sum(float(line.split()[1]) for line in said.splitlines() if line.startswith(name))

    def inside(self, pod: str, *command: str) -> str:
        """What a command prints beside the pod's process, if only that it failed."""
        return self._kubectl("exec", pod, "-c", "main", "--", *command, check=False)

    def _kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check)


def once(job: Job, steps: int, tasks: int) -> None:
    """Every (step, index) was trained, and none twice."""
    found = [(line["step"], len(line["tasks"])) for line in job.files["metrics"]]
    assert found == [(step, tasks) for step in range(found[0][0], found[0][0] + steps)], found
    trained = [task for line in job.files["metrics"] for task in line["tasks"]]
    assert len(set(trained)) == steps * tasks, f"{len(set(trained))} tasks in {steps} steps"
    given_up = [
        line["step"] for line in job.files["metrics"] if "groups-given-up" in line["counts"]
    ]
    assert given_up == [], f"groups were given up in {given_up}"


def same_as(job: Job, undisturbed: Job) -> None:
    """It trained the very same tasks to the very same weights."""
    mine, theirs = (each.files for each in (job, undisturbed))
    assert [line["tasks"] for line in mine["metrics"]] == [
        line["tasks"] for line in theirs["metrics"]
    ], "other tasks"
    assert mine["checksums"] == theirs["checksums"], "other weights"
