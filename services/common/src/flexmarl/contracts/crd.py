"""MARLJob's CustomResourceDefinition, made from the models: `python -m flexmarl.contracts.crd`.

Structural schema, defaults, enums, the rules of `cel`. `make generate` writes it into the chart.
Defaults are given where no rule asks whether a field was written: a default counts as written.
"""

import ast
import inspect
import sys
import textwrap
from typing import Any, TypeAlias

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from flexmarl.contracts import base, cluster, job, pipeline, policy, sources, status
from flexmarl.contracts.api import GROUP, VERSION
from flexmarl.contracts.base import NAME
from flexmarl.contracts.cel import CHANGED, FIXED, OVER, RULES
from flexmarl.contracts.explain import pattern_words
from flexmarl.contracts.job import MARLJobSpec
from flexmarl.contracts.status import JobStatus

Json: TypeAlias = dict[str, Any]

PLURAL = "marljobs"
DEFAULTED = {
    "MARLJobSpec", "BatchSpec", "PipelineSpec", "WeightSyncSpec", "CheckpointSpec", "RestartPolicy",
    "ReplicatedRoleSpec", "EngineSpec", "PoolSpec", "Toleration", "ShmSpec", "GangSpec",
    "ClaimSpec", "SecretKey",
}  # fmt: skip
"""Models whose plain defaults the API server fills in."""
NOT_DEFAULTED = {
    ("PoolSpec", "gpuResource"), ("CheckpointSpec", "uri"),
    ("ReplicatedRoleSpec", "startupSeconds"),
}  # fmt: skip
PRESERVE = "x-kubernetes-preserve-unknown-fields"
KEPT = ("minLength", "maxLength", "minItems", "maxItems", "enum", "format", PRESERVE)
LONGEST_TEXT = 65536
"""Bounds what a rule may cost to check; the longest that anything of a job may be."""
BOUNDS = ("minimum", "maximum", "maxLength", "maxItems", "maxProperties", "default", "required")
COUNT = 256
"""Of a map's or list's entries that say no other bound."""


def crd() -> Json:
    """The whole definition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": "MARLJob",
                "listKind": "MARLJobList",
                "plural": PLURAL,
                "singular": "marljob",
                "shortNames": ["mj"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns(),
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def columns() -> list[Json]:
    """What `kubectl get` shows; those of priority 1 with `-o wide`."""

    def column(name: str, kind: str, path: str, priority: int = 0) -> Json:
        return {"name": name, "type": kind, "jsonPath": path, "priority": priority}

    return [
        column("Phase", "string", ".status.phase"),
        column("Reason", "string", ".status.reason"),
        column("Step", "string", ".status.progress"),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Reward", "string", ".status.reward", 1),
        column("Tokens/s", "string", ".status.tokensPerSecond", 1),
        column("Restarts", "integer", ".status.restartsTotal", 1),
    ]


def _root() -> Json:
    spec = _Schema(MARLJobSpec).schema()
    _add_rules(spec)
    name = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}},
    }
    named = {**_matches("self.metadata.name", NAME), "fieldPath": ".metadata.name"}
    return {
        "type": "object",
        "x-kubernetes-validations": [named, OVER.validation()],
        "description": "A team of language-model agents that is trained by reinforcement learning.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": name,
            "spec": spec,
            "status": _open(_Schema(JobStatus).schema()),
        },
    }


def _open(node: Json) -> Json:
    """As what the controller writes: unbounded, null where a map has become empty, and with what a
    later version adds."""
    found = {key: value for key, value in node.items() if key not in BOUNDS} | {"nullable": True}
    if "properties" in node:
        found["properties"] = {name: _open(sub) for name, sub in node["properties"].items()}
        found[PRESERVE] = True
    for key in ("items", "additionalProperties"):
        if key in node:
            found[key] = _open(node[key])
    return found


def _matches(value: str, pattern: str) -> Json:
    """A rule in place of a schema's pattern, whose message would be the pattern."""
    says = f"is not allowed; must be {pattern_words(pattern)}"
    return {"rule": f"{value}.matches(r'{pattern}')", "message": says}


class _Schema:
    """JSON Schema of a model, rewritten to what the API server accepts as structural."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._whole = model.model_json_schema(by_alias=True)
        self._definitions: Json = self._whole.pop("$defs", {})
        self._docs = _documentation()

    def schema(self) -> Json:
        return self._visit(self._whole)

    def _visit(self, node: Json) -> Json:
        if "$ref" in node:
            target = self._definitions[node["$ref"].rsplit("/", 1)[1]]
            rest = {key: value for key, value in node.items() if key not in ("$ref", "default")}
            return self._visit({**target, **rest})
        if "anyOf" in node:  # `X | None`; a union of types there is none
            (other,) = (branch for branch in node["anyOf"] if branch.get("type") != "null")
            return {**self._visit(other), "nullable": True}
        out: Json = {"type": node["type"]} if "type" in node else {}
        out |= {key: node[key] for key in KEPT if key in node}
        if "const" in node:
            out["enum"] = [node["const"]]
        _add_bounds(node, out)
        if node.get("type") == "object":
            self._object(node, out)
        if node.get("type") == "array":
            items = node.get("items") or node["prefixItems"][0]
            out |= {"items": self._visit(items), "maxItems": node.get("maxItems", COUNT)}
        if "pattern" in node and "maxLength" in node:
            out["x-kubernetes-validations"] = [_matches("self", node["pattern"])]
        elif "pattern" in node:  # of a text without a bound a rule costs more than is allowed
            out["pattern"] = node["pattern"]
        if node.get("type") == "string" and "enum" not in out:
            out.setdefault("maxLength", LONGEST_TEXT)
        if node.get("description"):
            out["description"] = " ".join(node["description"].split())
        return out

    def _object(self, node: Json, out: Json) -> None:
        if "properties" not in node:
            more = node.get("additionalProperties")
            if (
                isinstance(more, dict)
                and more
                and "x-kubernetes-preserve-unknown-fields" not in out
            ):
                out["additionalProperties"] = self._visit(more)
                out["maxProperties"] = node.get("maxProperties", COUNT)
            else:
                out[PRESERVE] = True
            return
        model = node.get("title", "")
        out["properties"] = {}
        for name, sub in node["properties"].items():
            visited = self._visit(sub)
            plain = not isinstance(sub.get("default"), dict | list | None)
            if model in DEFAULTED and plain and (model, name) not in NOT_DEFAULTED:
                visited["default"] = sub["default"]
            says = self._docs.get((model, name), "")
            if plain and "default" not in visited:
                says = f"{says} Default: {sub['default']}.".strip()
            if says:
                visited["description"] = says
            out["properties"][name] = visited
        if node.get("required"):
            out["required"] = node["required"]


def _add_bounds(node: Json, out: Json) -> None:
    """Draft 4 has exclusive bounds as booleans; of integers the next one does as well."""
    for bound, step in (("Minimum", 1), ("Maximum", -1)):
        plain, exclusive = node.get(bound.lower()), node.get(f"exclusive{bound}")
        if plain is not None:
            out[bound.lower()] = plain
        elif exclusive is not None and node["type"] == "integer":
            out[bound.lower()] = exclusive + step
        elif exclusive is not None:
            out |= {bound.lower(): exclusive, f"exclusive{bound}": True}


def _documentation() -> dict[tuple[str, str], str]:
    """The docstrings under fields: (model, field as users write it) -> text."""
    found = {}
    for module in (base, cluster, job, pipeline, policy, sources, status):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                for field, text in zip(node.body, node.body[1:], strict=False):
                    match field, text:
                        case (
                            ast.AnnAssign(target=ast.Name(id=name)),
                            ast.Expr(value=ast.Constant(value=str(said))),
                        ):
                            key = node.name, to_camel(name)
                            found[key] = " ".join(textwrap.dedent(said).split())
    return found


def _add_rules(spec: Json) -> None:
    for rule in RULES:
        node = spec
        for part in filter(None, rule.path.split(".")):
            node = node["properties"][part.removesuffix("[]")]
            if part.endswith("[]"):
                node = node["items"]
        node.setdefault("x-kubernetes-validations", []).append(rule.validation())
    for name in FIXED:
        node = spec["properties"][name]
        validations = node.setdefault("x-kubernetes-validations", [])
        validations.append({"rule": "self == oldSelf", "message": CHANGED})
        if name not in spec["required"] and "default" not in node:
            spec["x-kubernetes-validations"].append(
                {
                    "rule": f"has(self.{name}) == has(oldSelf.{name})",
                    "message": CHANGED,
                    "fieldPath": f".{name}",
                }
            )


class _Dumper(yaml.SafeDumper):
    """Without anchors, which a reader of a definition does not expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    sys.stdout.write("# Made from the models of flexmarl.contracts by `make generate`.\n")
    yaml.dump(crd(), sys.stdout, Dumper=_Dumper, sort_keys=False, width=100)


if __name__ == "__main__":
    main()
