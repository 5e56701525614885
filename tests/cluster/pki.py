"""Certificates and kubeconfigs of a one-node cluster, made afresh at every start by openssl."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .layout import NODE, NODE_IP

SERVICE = "kubernetes.default.svc"
NAMES = (
    f"DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:{SERVICE},DNS:{SERVICE}.cluster.local"
)
DAYS = "30"


@dataclass(frozen=True, slots=True)
class Identity:
    file: str
    user: str
    group: str = ""
    names: str = ""
    kubeconfig: bool = False


IDENTITIES = (
    Identity(
        "apiserver", "kube-apiserver", names=f"IP:127.0.0.1,IP:10.96.0.1,IP:{NODE_IP},{NAMES}"
    ),
    Identity("apiserver-kubelet", "apiserver-kubelet-client", "system:masters"),
    Identity("front-proxy", "front-proxy-client"),
    Identity("admin", "admin", "system:masters", kubeconfig=True),
    Identity("controller-manager", "system:kube-controller-manager", kubeconfig=True),
    Identity("scheduler", "system:kube-scheduler", kubeconfig=True),
    Identity("proxy", "system:kube-proxy", kubeconfig=True),
    Identity(
        "kubelet",
        f"system:node:{NODE}",
        "system:nodes",
        names=f"DNS:{NODE},IP:127.0.0.1,IP:{NODE_IP}",
        kubeconfig=True,
    ),
)


def make_pki(directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o700)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    def key(name: str) -> None:
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

    key("ca")
    openssl(
        *("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=flexmarl-test-ca"),
        *("-days", DAYS, "-out", "ca.crt", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    openssl("genrsa", "-out", "sa.key", "2048")
    openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for each in IDENTITIES:
        key(each.file)
        subject = (f"/O={each.group}" if each.group else "") + f"/CN={each.user}"
        openssl(
            *("req", "-new", "-key", f"{each.file}.key", "-subj", subject),
            *("-out", f"{each.file}.csr"),
        )
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth",
            "authorityKeyIdentifier=keyid",
            "subjectKeyIdentifier=hash",
            *([f"subjectAltName={each.names}"] if each.names else []),
        ]
        (directory / f"{each.file}.ext").write_text("\n".join(extensions) + "\n")
        openssl(
            *("x509", "-req", "-in", f"{each.file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", DAYS, "-extfile", f"{each.file}.ext"),
            *("-out", f"{each.file}.crt"),
        )
        if each.kubeconfig:
            (directory / f"{each.file}.kubeconfig").write_text(_kubeconfig(directory, each.file))


def _kubeconfig(directory: Path, name: str) -> str:
    def read(file: str) -> str:
        return base64.b64encode((directory / file).read_bytes()).decode()

    cluster = {
        "server": "https://127.0.0.1:6443",
        "certificate-authority-data": read("ca.crt"),
    }
    user = {
        "client-certificate-data": read(f"{name}.crt"),
        "client-key-data": read(f"{name}.key"),
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "flexmarl-test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "flexmarl-test", "user": name}}],
            "current-context": "x",
        }
    )
