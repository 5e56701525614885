"""One Kubernetes node that starts from nothing and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from . import daemons, isolation, prune, settings
from .images import Builder
from .layout import PAUSE_IMAGE, REGISTRY, REPO, Layout
from .programs import MissingError, install

PATIENCE = 90.0
"""Seconds for any one part to answer; on an idle machine a whole start takes about ten."""


class Node:
    def __init__(self, where: Layout) -> None:
        self._where = where
        self._users: TextIO | None = None
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self) -> dict[str, str]:
        """What a command needs to talk to the cluster."""
        return {
            **os.environ,
            "PATH": f"{self._where.programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(self._where.kubeconfig),
            "CONTAINERD_ADDRESS": str(self._where.containerd_socket),
            "CONTAINERD_NAMESPACE": "k8s.io",
        }

    def up(self, *, gang: bool) -> bool:
        """Start the node unless it is up with the same switches; say whether it started."""
        require_root()
        with self._alone():
            install(self._where)
            if self._stands(gang=gang):
                return False
            self._refuse_if_used()
            isolation.dissolve(self._where)
            try:
                self._start(gang=gang)
            except BaseException:
                isolation.dissolve(self._where)
                raise
            return True

    def down(self) -> None:
        require_root()
        with self._alone():
            self._refuse_if_used()
            isolation.dissolve(self._where)

    def is_up(self) -> bool:
        return self._kubectl_ok("get", "--raw", "/readyz")

    def run(self, command: list[str], **environment: str) -> int:
        """Run a command inside the node's network; its exit code."""
        done = subprocess.run(
            [*self._where.enter, *command],
            env={**os.environ, **environment, **self.environment()},
            check=False,
        )
        return done.returncode

    def push(self, names: list[str], builder: Builder, output: Path) -> None:
        """Our images from buildah's store into the node's registry; the kubelet pulls them."""
        record = self._where.kept / "pushed.yaml"
        prune.containerd(self._ctr, prune.pushed(record).values())
        script = [sys.executable, str(REPO / "images/images.py"), "push", *names]
        options = ["--engine=buildah", "--plain-http", f"--registry={REGISTRY}"]
        written = f"--output={output}"
        if self.run([*script, *options, written], **builder.environment()) != 0:
            raise MissingError("the images could not be pushed to the test node's registry")
        known = prune.pushed(record) | prune.pushed(output)
        record.write_text("".join(f"{name}: {image}\n" for name, image in known.items()))

    def replace_process(self, command: list[str]) -> None:
        self._users = (self._where.kept / "users").open("w")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        os.set_inheritable(self._users.fileno(), True)  # held until the command ends
        os.execvpe("nsenter", [*self._where.enter, *command], self.environment())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Holds the node: while anyone does, no other call ends it or starts it anew."""
        self._where.kept.mkdir(parents=True, exist_ok=True)
        with (self._where.kept / "users").open("w") as self._users:
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield
        self._users = None

    def others_use_it(self) -> bool:
        own = self._users
        file = own or (self._where.kept / "users").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            if own:
                fcntl.flock(own, fcntl.LOCK_SH)
            else:
                file.close()
        return False

    def _refuse_if_used(self) -> None:
        if self._where.run.exists() and self.others_use_it():
            raise MissingError(
                f"others use the node {self._where.name} right now; FLEXMARL_CLUSTER_NAME=another "
                "makes a second one"
            )

    def _stands(self, *, gang: bool) -> bool:
        record = self._where.run / "started.json"
        if not record.exists():
            return False
        said = json.loads(record.read_text())
        if said["gang"] != gang or not set(said["processes"]) <= set(
            isolation.members(self._where)
        ):
            return False
        return self._node_ready() and self._dns_answers()

    def _start(self, *, gang: bool) -> None:
        where = self._where
        began = time.monotonic()
        (where.run / "log").mkdir(parents=True)
        isolation.remember_kernel_settings(where)
        make_files(where)
        isolation.make_cgroups(where)
        isolation.enter_namespace(where)
        prune.registry(where)
        self._daemon("registry", daemons.registry(where))
        self._daemon("containerd", daemons.containerd(where))
        self._daemon("etcd", daemons.etcd(where))
        self._daemon("kube-apiserver", daemons.apiserver(where, gang=gang))
        self._await("containerd", self._containerd_answers)
        self._import_pause()
        self._await("the API server", self.is_up)
        for name, command in daemons.kubernetes(where, gang=gang).items():
            self._daemon(name, command)
        self._await("the default service account", lambda: self._kubectl_ok("get", "sa", "default"))
        self._kubectl(
            "apply", "--server-side", "-f", "-", stdin=json.dumps(settings.storage(where))
        )
        self._await("a node that is Ready", self._node_ready)
        self._daemon("kube-router", daemons.kube_router(where))
        self._await("DNS", self._dns_answers)
        self._await("network policies", self._policies_enforced)
        processes = [process.pid for process in self._started.values()]
        record = {"gang": gang, "processes": processes}
        (where.run / "started.json").write_text(json.dumps(record))
        print(f"cluster: up in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def _daemon(self, name: str, command: list[str]) -> None:
        self._started[name] = isolation.start(self._where, name, command)

    def _import_pause(self) -> None:
        listed = self._inside(["ctr", "images", "ls", "-q"])
        if PAUSE_IMAGE in listed.stdout.split():
            return
        archive = self._where.run / "pause.tar"
        Builder(self._where).pause(archive)
        self._inside(["ctr", "images", "import", str(archive)], check=True)
        archive.unlink()

    def _ctr(self, arguments: list[str]) -> str:
        return self._inside(["ctr", *arguments], check=True).stdout

    def _containerd_answers(self) -> bool:
        return self._inside(["ctr", "version"]).returncode == 0

    def _node_ready(self) -> bool:
        asked = ["get", "nodes", "--no-headers"]
        return any(line.split()[1:2] == ["Ready"] for line in self._ask(*asked).splitlines())

    def _dns_answers(self) -> bool:
        ask = "import urllib.request as r; r.urlopen('http://127.0.0.1:8181/ready', timeout=5)"
        return self._inside([sys.executable, "-c", ask]).returncode == 0

    def _policies_enforced(self) -> bool:
        return "KUBE-ROUTER-FORWARD" in self._inside(["iptables", "-S", "FORWARD"]).stdout

    def _ask(self, *arguments: str) -> str:
        return self._inside(["kubectl", "--request-timeout=5s", *arguments]).stdout

    def _kubectl_ok(self, *arguments: str) -> bool:
        return self._inside(["kubectl", "--request-timeout=5s", *arguments]).returncode == 0

    def _kubectl(self, *arguments: str, stdin: str) -> None:
        command = [*self._where.enter, "kubectl", *arguments]
        subprocess.run(
            command, env=self.environment(), check=True, input=stdin, text=True, capture_output=True
        )

    def _inside(
        self, command: list[str], *, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._where.enter, *command],
            env=self.environment(),
            check=check,
            capture_output=True,
            text=True,
        )

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            ended = [name for name, each in self._started.items() if each.poll() is not None]
            if ended:
                raise MissingError(f"{', '.join(ended)} ended\n{self._last_words()}")
            if time.monotonic() > end:
                raise MissingError(f"timed out waiting for {what}\n{self._last_words()}")
            time.sleep(0.1)

    def _last_words(self) -> str:
        logs = sorted((self._where.run / "log").iterdir())
        tails = ((log.name, log.read_text(errors="replace").splitlines()[-5:]) for log in logs)
        return "\n".join(f"{name}: {line}" for name, lines in tails for line in lines)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._where.kept.mkdir(parents=True, exist_ok=True)
        with (self._where.kept / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def make_files(where: Layout) -> None:
    from .pki import make_pki

    make_pki(where.pki)
    for name, content in settings.files(where).items():
        path = where.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for volume in settings.volume_paths(where):
        os.makedirs(volume)
        os.chmod(volume, 0o777)


def require_root() -> None:
    if os.geteuid() != 0:
        raise MissingError(
            "a node of one's own needs root: run as root, or start docker (then kind is used), "
            "or set KUBECONFIG and REGISTRY to a cluster and a registry that it pulls from"
        )
