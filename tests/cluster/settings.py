"""The configuration files of a node's programs, as pure data."""

from __future__ import annotations

import json
from typing import Any

from .layout import NODE, NODE_IP, PAUSE_IMAGE, POD_CIDR, REGISTRY, Layout

VOLUMES = 96
"""Claims that one life of a node can bind: there is no provisioner."""
STORAGE_CLASS = "flexmarl-test"


def files(where: Layout) -> dict[str, str]:
    """Path below the run folder -> content."""
    return {
        "containerd.toml": _containerd(where),
        f"certs.d/{REGISTRY}/hosts.toml": f'[host."http://{REGISTRY}"]\n',  # plain http
        "registry.yml": json.dumps(_registry(where)),
        "cni/10-bridge.conflist": json.dumps(_cni(where)),
        "kubelet.yaml": json.dumps(_kubelet(where)),
        "Corefile": _corefile(where),
        "resolv.conf": f"nameserver {NODE_IP}\n",
    }


def _containerd(where: Layout) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE every sandbox fails otherwise.
    # discard_unpacked_layers: the registry beside it has them.
    return f"""version = 2
root = "{where.kept / "containerd"}"
state = "{where.run / "containerd"}"
[grpc]
  address = "{where.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{where.run / "certs.d"}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{where.run / "cni"}"
"""


def _registry(where: Layout) -> dict[str, Any]:
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {
            "filesystem": {"rootdirectory": str(where.kept / "registry")},
            "delete": {"enabled": True},
        },
        "http": {"addr": REGISTRY, "secret": "of a test node"},
    }


def _cni(where: Layout) -> dict[str, Any]:
    """Pods hang on a bridge; nothing leaves the namespace, so there is nothing to masquerade."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": POD_CIDR}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(where.run / "ipam"),
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _kubelet(where: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{where.name}",
        "containerRuntimeEndpoint": f"unix://{where.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(where.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(where.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(where.pki / "kubelet.key"),
        "clusterDNS": [NODE_IP],
        "clusterDomain": "cluster.local",
        "failSwapOn": False,
        # A shared machine's disk is often nearly full: that is no reason to evict a test.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "resolvConf": str(where.run / "resolv.conf"),
    }


def _corefile(where: Layout) -> str:
    return f""".:53 {{
  bind {NODE_IP}
  ready 127.0.0.1:8181
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {where.kubeconfig}
    ttl 2
  }}
}}
"""


def storage(where: Layout) -> dict[str, Any]:
    """A default StorageClass with volumes made beforehand, each a folder that anyone may write."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{STORAGE_CLASS}-{number}"},
            "spec": {
                "storageClassName": STORAGE_CLASS,
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(path), "type": "Directory"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {
                                        "key": "kubernetes.io/hostname",
                                        "operator": "In",
                                        "values": [NODE],
                                    }
                                ]
                            }
                        ]
                    }
                },
            },
        }
        for number, path in enumerate(volume_paths(where))
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [storage_class, *volumes]}


def volume_paths(where: Layout) -> list[str]:
    return [str(where.run / "volumes" / str(number)) for number in range(VOLUMES)]
