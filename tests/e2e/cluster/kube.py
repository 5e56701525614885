"""The cluster as a test sees it: kubectl and helm, and the shapes of pods that every test needs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Event

from .reading import Manifest, Reader

ENDED = Event()
"""Nobody waits for anything any more."""


class Kubernetes:
    """kubectl and helm with the kubeconfig of the environment; every call has a deadline."""

    @cached_property
    def reader(self) -> Reader:
        return Reader()

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = 60
    ) -> str:
        """What kubectl printed; with `check=False` also when it failed, with its complaint."""
        return _run("kubectl", arguments, stdin, check, seconds)

    def helm(self, *arguments: str, check: bool = True, seconds: float = 120) -> str:
        return _run("helm", arguments, None, check, seconds)

    def apply(self, namespace: str, *manifests: Manifest) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(listed))

    def get(self, namespace: str, kind: str, name: str) -> Manifest:
        found = self.reader.one(kind, namespace, name)
        assert found is not None, f"namespace {namespace} has no {kind} {name}"
        return found

    def phase(self, namespace: str, pod: str) -> str:
        phase: str = self.get(namespace, "pod", pod)["status"]["phase"]
        return phase

    def complete(self, namespace: str, pod: str, *, seconds: float = 120) -> str:
        """The output of a pod that runs to its end."""
        until(lambda: self.phase(namespace, pod) in {"Succeeded", "Failed"}, f"{pod} ends", seconds)
        output = self.kubectl("-n", namespace, "logs", pod)
        assert self.phase(namespace, pod) == "Succeeded", output
        return output

    def ready(self, namespace: str, pod: str, *, seconds: float = 120) -> None:
        def there() -> bool:
            conditions = self.get(namespace, "pod", pod)["status"].get("conditions", ())
            return ("Ready", "True") in [(one["type"], one["status"]) for one in conditions]

        until(there, f"{pod} is ready", seconds)

    def restricted_namespace(self, name: str) -> None:
        self.kubectl("create", "namespace", name)
        self.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")

    def node(self) -> str:
        """One that runs pods: tests make others, which only exist."""
        ready: list[str] = [
            node["metadata"]["name"]
            for node in self.reader.all("node", "")
            for condition in node["status"].get("conditions", ())
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]
        return ready[0]

    def advertise(self, node: str, resources: Mapping[str, int]) -> None:
        """Give a node resources that it does not have, for the scheduler to count."""
        counts = {name: str(count) for name, count in resources.items()}
        patch = json.dumps({"status": {"capacity": counts, "allocatable": counts}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)

    @contextmanager
    def devices(self, resource: str, count: int) -> Iterator[str]:
        """A node that has so many of them, which nobody else asks for."""
        name = self.node()
        self.advertise(name, {resource: count})
        try:
            yield name
        finally:
            self.advertise(name, {resource: 0})

    def evidence(self, namespace: str) -> str:
        """What a person would ask for first when a test failed; on a cluster that does not answer
        the test's own failure is what counts."""
        try:
            return self._evidence(namespace)
        except subprocess.TimeoutExpired as error:
            return str(error)

    def _evidence(self, namespace: str) -> str:
        asked = (
            ("get", "pods,jobs,deployments,statefulsets", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        )
        parts = [self.kubectl("-n", namespace, *each, check=False) for each in asked]
        pods = self.kubectl("-n", namespace, "get", "pods", "-o", "name", check=False).split()
        tail = ("--all-containers", "--prefix", "--tail=30")
        parts += [self.kubectl("-n", namespace, "logs", *tail, pod, check=False) for pod in pods]
        return "\n".join(parts)


def restricted_pod(
    name: str,
    image: str,
    *,
    command: list[str] | None = None,
    args: list[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A pod for the restricted profile: not root, only /tmp and /cache writable."""
    writable = ("tmp", "cache")
    container = {
        "name": "main",
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": each, "mountPath": f"/{each}"} for each in writable],
        **({"command": command} if command else {}),
        **({"args": args} if args else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": each, "emptyDir": {}} for each in writable],
        },
    }


def slack() -> float:
    """By how much what is promised in seconds may take longer: 1, unless others use the machine.

    The tests themselves keep up to four processes a core busy.
    """
    return max(1.0, os.getloadavg()[0] / (4 * (os.cpu_count() or 1)))


def until(
    condition: Callable[[], bool],
    what: str,
    seconds: float = 60,
    says: Callable[[], object] = str,
) -> None:
    """Wait for it, `seconds` times the load of the machine; with what is said if it does not come.

    The first looks come quickly, for a quick test; the others cost those beside it little.
    """
    began, pause = time.monotonic(), 0.05
    while not condition():
        if time.monotonic() - began > seconds * slack():
            raise AssertionError(f"not within {seconds:.0f} s: {what}; {says()}")
        assert not ENDED.wait(pause), f"interrupted: {what}"
        pause = min(0.3, 1.2 * pause)


def _run(
    program: str, arguments: tuple[str, ...], stdin: str | None, check: bool, seconds: float
) -> str:
    done = subprocess.run(
        [program, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds * slack(),
    )
    if check and done.returncode:
        raise AssertionError(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if done.returncode else "")
