"""Renders the chart with a real helm, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.contract.chart.readme import CHART

Manifest = dict[str, Any]
Values = Mapping[str, Any]
REGISTRY: Values = {"image.registry": "registry.example/team"}
NAMESPACE = "marl"


@dataclass(frozen=True, slots=True)
class Helm:
    path: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        return subprocess.run(
            [self.path, *arguments], capture_output=True, text=True, check=False, env=environment
        )

    def lint(self, values: Values) -> subprocess.CompletedProcess[str]:
        return self.run("lint", "--strict", str(CHART), *settings({**REGISTRY, **values}))

    def refusal(self, values: Values) -> str:
        done = self.run("template", "demo", str(CHART), *settings(values))
        assert done.returncode != 0, done.stdout
        return done.stderr

    def render(self, values: Values | None = None, *flags: str) -> list[Manifest]:
        """Manifests, those of hooks included; `values` as paths, beside the registry."""
        chosen = settings({**REGISTRY, **(values or {})})
        done = self.run("template", "demo", str(CHART), "-n", NAMESPACE, *chosen, *flags)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]


def settings(values: Values) -> list[str]:
    return [f"--set-json={path}={json.dumps(value)}" for path, value in values.items()]


def one(manifests: Iterable[Manifest], kind: str, name: str) -> Manifest:
    [found] = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def identities(manifests: Iterable[Manifest]) -> list[tuple[str, str, str]]:
    return sorted(
        (m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in manifests
    )


def pods(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Kind and name -> spec of the pod that it makes."""
    found = {}
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            found[f"Pod/{manifest['metadata']['name']}"] = manifest["spec"]
        elif template := manifest.get("spec", {}).get("template"):
            found[f"{manifest['kind']}/{manifest['metadata']['name']}"] = template["spec"]
    return found
