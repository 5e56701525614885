"""Where the test node keeps its things, its name, and the addresses inside its namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]

NODE = "node1"
NODE_IP = "10.200.0.1"
"""Held by a bridge inside the namespace: two nodes of different names never meet."""
REGISTRY = f"{NODE_IP}:5000"
SERVICE_CIDR = "10.96.0.0/16"
POD_CIDR = "10.244.0.0/24"
PAUSE_IMAGE = f"{REGISTRY}/flexmarl-test/pause:1"


@dataclass(frozen=True, slots=True)
class Layout:
    state: Path
    """Shared by nodes of all names: programs and buildah's store."""
    name: str
    """Also the name of the network namespace and of the cgroup."""

    @property
    def programs(self) -> Path:
        return self.state / "bin"

    @property
    def kept(self) -> Path:
        """What outlives `down`: pulled and pushed images, so that a warm start pays for changes."""
        return self.state / self.name

    @property
    def run(self) -> Path:
        """What `down` removes."""
        return self.kept / "run"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.pki / "admin.kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def netns(self) -> Path:
        return Path("/run/netns") / self.name

    @property
    def enter(self) -> list[str]:
        """Not `ip netns exec`: that mounts /sys anew and hides the cgroups."""
        return ["nsenter", f"--net={self.netns}"]


def layout() -> Layout:
    default = Path.home() / ".cache/flexmarl/cluster"
    state = Path(os.environ.get("FLEXMARL_CLUSTER_STATE", default)).resolve()
    return Layout(state, os.environ.get("FLEXMARL_CLUSTER_NAME", "flexmarl"))


def gang_scheduling() -> bool:
    """Whether Kubernetes' own gang scheduling, an alpha of 1.36, is switched on."""
    return os.environ.get("FLEXMARL_CLUSTER_GANG", "1") == "1"
