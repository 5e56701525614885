"""The command lines of a node's programs, in the order in which they start."""

from __future__ import annotations

from .layout import NODE, NODE_IP, SERVICE_CIDR, Layout

ISSUER = "https://kubernetes.default.svc"
GANG_GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
GANG_API = "--runtime-config=scheduling.k8s.io/v1alpha2=true"


def registry(where: Layout) -> list[str]:
    return ["docker-registry", "serve", str(where.run / "registry.yml")]


def containerd(where: Layout) -> list[str]:
    return ["containerd", "-c", str(where.run / "containerd.toml")]


def etcd(where: Layout) -> list[str]:
    return [_at(where, "etcd"), f"--data-dir={where.run / 'etcd'}", "--unsafe-no-fsync"]


def apiserver(where: Layout, *, gang: bool) -> list[str]:
    pki = where.pki
    return [
        _at(where, "kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        f"--advertise-address={NODE_IP}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-account-key-file={pki}/sa.pub",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        *([GANG_GATES, GANG_API] if gang else []),
    ]


def kubernetes(where: Layout, *, gang: bool) -> dict[str, list[str]]:
    """What starts once the API server answers."""
    pki = where.pki

    def kubeconfig(user: str) -> str:
        return f"--kubeconfig={pki}/{user}.kubeconfig"

    return {
        "kube-controller-manager": [
            _at(where, "kube-controller-manager"),
            kubeconfig("controller-manager"),
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *([GANG_GATES] if gang else []),  # else nothing lets a PodGroup go
        ],
        "kube-scheduler": [
            _at(where, "kube-scheduler"),
            kubeconfig("scheduler"),
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *([GANG_GATES] if gang else []),
        ],
        "kubelet": [
            _at(where, "kubelet"),
            kubeconfig("kubelet"),
            f"--config={where.run / 'kubelet.yaml'}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_IP}",
            f"--root-dir={where.run / 'kubelet'}",
            f"--cert-dir={where.run / 'kubelet/pki'}",
        ],
        "kube-proxy": [
            _at(where, "kube-proxy"),
            kubeconfig("proxy"),
            "--proxy-mode=iptables",
            "--cluster-cidr=10.244.0.0/16",
            f"--hostname-override={NODE}",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            f"--bind-address={NODE_IP}",
        ],
        "coredns": [_at(where, "coredns"), "-conf", str(where.run / "Corefile")],
    }


def kube_router(where: Layout) -> list[str]:
    """Enforces network policies, nothing else. It ends when it finds no node of its name."""
    return [
        *("env", f"NODE_NAME={NODE}"),
        _at(where, "kube-router"),
        f"--kubeconfig={where.kubeconfig}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--hostname-override={NODE}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
    ]


def _at(where: Layout, name: str) -> str:
    return str(where.programs / name)
