"""A Kubernetes API without a node: etcd, API server and controllers on free ports, without root.

What is applied is stored, checked and owned as on any cluster; pods are made, and no one runs them.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.ports import HOST, free_ports

from .layout import SERVICE_CIDR, Layout
from .pki import make_pki
from .programs import MissingError

PATIENCE = 300.0
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: however this process ends, that one does not go on."""


def installed(where: Layout) -> bool:
    return all((where.programs / name).exists() for name in PROGRAMS)


@contextmanager
def api_server(where: Layout) -> Iterator[Path]:
    """The kubeconfig of its administrator; ended with the block."""
    if not installed(where):
        raise MissingError("compile Kubernetes first: python -m tests.cluster install --api")
    with tempfile.TemporaryDirectory(prefix="flexmarl-api-") as name, ExitStack() as stack:
        directory = Path(name)
        client, peer, secure = free_ports(3)
        pki = directory / "pki"
        make_pki(pki)
        for user in ("admin", "controller-manager"):
            _point(pki / f"{user}.kubeconfig", secure)
        for command in (
            _etcd(where, directory, client, peer),
            _apiserver(where, pki, client, secure),
        ):
            stack.enter_context(_running(directory, command))
        _await_ready(pki, secure, directory)
        stack.enter_context(_running(directory, _controllers(where, pki)))
        yield pki / "admin.kubeconfig"


def _etcd(where: Layout, directory: Path, client: int, peer: int) -> list[str]:
    own, others = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
    return [
        str(where.programs / "etcd"),
        f"--data-dir={directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={own}",
        f"--advertise-client-urls={own}",
        f"--listen-peer-urls={others}",
        f"--initial-advertise-peer-urls={others}",
        f"--initial-cluster=default={others}",
    ]


def _apiserver(where: Layout, pki: Path, etcd: int, secure: int) -> list[str]:
    return [
        str(where.programs / "kube-apiserver"),
        f"--etcd-servers=http://{HOST}:{etcd}",
        f"--bind-address={HOST}",
        f"--secure-port={secure}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-account-key-file={pki}/sa.pub",
        "--authorization-mode=Node,RBAC",
    ]


def _controllers(where: Layout, pki: Path) -> list[str]:
    return [
        str(where.programs / "kube-controller-manager"),
        f"--kubeconfig={pki}/controller-manager.kubeconfig",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
    ]


@contextmanager
def _running(directory: Path, command: Sequence[str]) -> Iterator[None]:
    with (directory / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*DIES_WITH_US, *command], stdout=log, stderr=subprocess.STDOUT, cwd=directory
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(pki: Path, port: int, directory: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    trusted.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(
                f"https://{HOST}:{port}/readyz", context=trusted, timeout=5
            ):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end:
                said = (directory / "kube-apiserver.log").read_text(errors="replace")
                raise MissingError(f"the API server does not start: {said[-2000:]}") from None
            time.sleep(0.2)


def _point(kubeconfig: Path, port: int) -> None:
    found = json.loads(kubeconfig.read_text())
    found["clusters"][0]["cluster"]["server"] = f"https://{HOST}:{port}"
    kubeconfig.write_text(json.dumps(found))
