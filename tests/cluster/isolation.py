"""A network namespace and a cgroup of our own: all that runs in them is ours to end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .layout import NODE_IP, Layout

CGROUPS = Path("/sys/fs/cgroup")
CPU_WEIGHT = {"cpu.shares": "8192", "cpu.weight": "800"}
"""In versions 1 and 2: eight times that of a process beside; all pods together would have one's."""
KERNEL_SETTINGS = ("kernel.panic_on_oops", "kernel.panic", "vm.overcommit_memory")
"""Not per namespace, and a kubelet sets them: `down` puts them back."""


def enter_namespace(where: Layout) -> None:
    """Make the namespace, with the node's address on a bridge: a dummy device is not everywhere."""
    # Where they are built in, or lie outside a container, this fails and is not needed.
    subprocess.run(["modprobe", "-qa", "br_netfilter", "overlay"], check=False, capture_output=True)
    quiet(["ip", "netns", "add", where.name])
    for command in (
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", "node0", "type", "bridge"],
        ["ip", "addr", "add", f"{NODE_IP}/24", "dev", "node0"],
        ["ip", "link", "set", "node0", "up"],
        ["ip", "route", "add", "default", "dev", "node0"],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"],
    ):
        quiet([*where.enter, *command])


def make_cgroups(where: Layout) -> None:
    for hierarchy in _hierarchies():
        own = hierarchy / where.name
        own.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty, and then nothing may run
            if (own / file).exists() and (hierarchy / file).exists():
                (own / file).write_text((hierarchy / file).read_text())
        for file, weight in CPU_WEIGHT.items():
            if (own / file).exists():
                (own / file).write_text(weight)


def remember_kernel_settings(where: Layout) -> None:
    said = subprocess.run(["sysctl", *KERNEL_SETTINGS], check=True, capture_output=True, text=True)
    (where.run / "sysctl").write_text(said.stdout)


def start(where: Layout, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with (where.run / "log" / name).open("wb") as log:
        return subprocess.Popen(
            [*where.enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )


def members(where: Layout) -> list[int]:
    """Processes of the namespace or of the cgroup, never this one or what started it."""
    found = set()
    if where.netns.exists():
        own = where.netns.stat()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                namespace = (process / "ns/net").stat()
            except OSError:  # ended meanwhile
                continue
            if (namespace.st_ino, namespace.st_dev) == (own.st_ino, own.st_dev):
                found.add(int(process.name))
    for hierarchy in _hierarchies():
        for group in _groups(hierarchy / where.name):
            try:
                text = (group / "cgroup.procs").read_text()
                found.update(int(line) for line in text.split())
            except OSError:  # the group went meanwhile
                continue
    return sorted(found - {os.getpid(), os.getppid()})


def dissolve(where: Layout) -> None:
    """End every member, unmount what they left, remove namespace, cgroups and the run folder."""
    for each in (signal.SIGTERM, signal.SIGKILL):
        for process in members(where):
            try:
                os.kill(process, each)
            except ProcessLookupError:
                continue
        if _soon(lambda: not members(where), seconds=4):
            break
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{where.run}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
    if where.netns.exists():
        quiet(["ip", "netns", "del", where.name])
    for hierarchy in _hierarchies():
        for group in sorted(_groups(hierarchy / where.name), reverse=True):
            if group.is_dir():
                _soon(partial(_removed, group), seconds=2)
    if (where.run / "sysctl").exists():
        subprocess.run(["sysctl", "-qp", where.run / "sysctl"], check=False, capture_output=True)
    if where.run.exists():
        shutil.rmtree(where.run)


def _hierarchies() -> list[Path]:
    """One per controller (version 1), or the one of version 2."""
    nested = [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()]
    return [CGROUPS] if (CGROUPS / "cgroup.procs").exists() else nested


def _groups(top: Path) -> list[Path]:
    """With those below; unlike rglob, os.walk does not mind that some go meanwhile."""
    return [Path(directory) for directory, _, _ in os.walk(top)]


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # its last process is still being reaped
        return False
    return True


def _soon(condition: Callable[[], bool], *, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def quiet(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
