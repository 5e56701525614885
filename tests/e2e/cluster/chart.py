"""The chart as a release on the cluster, with the images that were made for the tests."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kube import Kubernetes

CHART = Path(__file__).resolve().parents[3] / "charts/flexmarl"
REFERENCE = re.compile(r"(?:(?P<registry>.+)/)?(?P<repository>flexmarl/[\w-]+)(?P<which>[@:].+)")


def image_values(images: Mapping[str, str]) -> dict[str, Any]:
    """Image name -> reference, as the chart's values say it."""
    values: dict[str, Any] = {}
    for name, reference in images.items():
        found = REFERENCE.fullmatch(reference)
        assert found, reference
        values["registry"] = (
            found["registry"] or "docker.io"
        )  # where a bare name would be looked up
        which = found["which"]
        if which.startswith("@"):
            values[name] = {"repository": found["repository"], "digest": which[1:]}
        else:
            values[name] = {"repository": found["repository"]}
            values["tag"] = which[1:]
    return values


@dataclass(frozen=True, slots=True)
class Release:
    cluster: Kubernetes
    images: Mapping[str, str]
    namespace: str
    name: str = "flexmarl"

    def upgrade(self, *, chart: Path = CHART, wait: bool = True, **values: Any) -> str:
        """Install it, or bring it to these values (`store={"fsync": "no"}`); what helm says."""
        values = {"image": image_values(self.images), **values}
        arguments = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
        options = ["--install", "--create-namespace", "--reset-values", "--timeout=240s"]
        if wait:
            options.append("--wait")
        return self._helm("upgrade", str(chart), *options, *arguments)

    def uninstall(self) -> str:
        return self._helm("uninstall", "--wait", "--timeout=60s")

    def test(self) -> str:
        return self._helm("test", "--logs", "--timeout=600s")

    def account(self) -> str:
        """Who the controller is, for `kubectl auth can-i --as`."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def store_url(self) -> str:
        secret = self.cluster.get(self.namespace, "secret", f"{self.name}-store")
        return base64.b64decode(secret["data"]["url"]).decode()

    def lose_store(self) -> None:
        """The pod of it, at once, as if the node were gone."""
        lost = ("-n", self.namespace, "delete", "pod", f"{self.name}-store-0")
        self.cluster.kubectl(*lost, "--force", "--grace-period=0")

    def store_ready(self, *, seconds: float = 120) -> None:
        store = f"statefulset/{self.name}-store"
        wait = f"--timeout={seconds:.0f}s"
        self.cluster.kubectl(
            "-n", self.namespace, "rollout", "status", store, wait, seconds=seconds + 10
        )

    def _helm(self, verb: str, *arguments: str) -> str:
        return self.cluster.helm(verb, self.name, *arguments, "-n", self.namespace, seconds=660)
