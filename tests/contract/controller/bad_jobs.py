"""A sound job, and one for each rule that the API server checks, which breaks it."""

import copy
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]

MODEL = {"uri": "random://llama?hidden=16&layers=1&heads=2&context=512"}


def sound() -> Document:
    return {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": "tiny", "namespace": "default"},
        "spec": {
            "policies": [
                {"name": name, "model": dict(MODEL), "engine": {"kind": "scripted"}}
                for name in ("solver", "verifier")
            ],
            "agents": [
                {"name": name, "policy": name, "sampling": {"maxTokens": 12}}
                for name in ("solver", "verifier")
            ],
            "workflow": {"name": "solver-verifier"},
            "data": {"uri": "gym://chain_sum", "size": 16},
            "steps": 2,
            "batch": {"tasksPerStep": 2, "groupSize": 2},
        },
    }


def changed(**values: Any) -> Document:
    """`sound`, with `agents__0__policy="x"` put to its place; None takes away."""
    document = copy.deepcopy(sound())
    for path, value in values.items():
        at: Any = document["spec"]
        *way, last = path.split("__")
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is None:
            del at[last]
        else:
            at[last] = value
    return document


POOL = {"name": "gpu", "role": "engine"}


def placed(**fields: Any) -> Document:
    """With a pool that has such fields."""
    return changed(pools=[{**POOL, **fields}], policies__0__pools=["gpu"])


BAD: dict[str, Document] = {
    "names are unique": changed(policies__1__name="solver"),
    "no policy is named": changed(agents__0__policy="sovler"),
    "name it in an agent": changed(agents__0__policy="verifier"),
    "at least one must learn": changed(
        policies__0__training={"algorithm": "none"}, policies__1__training={"algorithm": "none"}
    ),
    "no pool is named": changed(policies__0__pools=["gpu"]),
    "policies that share engines have one engine kind": changed(
        pools=[POOL],
        policies__0__pools=["gpu"],
        policies__1__pools=["gpu"],
        policies__1__engine={"kind": "transformers"},
    ),
    "choose another name": changed(agents__0__name="user"),
    "required for an openai engine, but missing": changed(
        policies__0__engine={"kind": "openai"},
        policies__0__model=None,
        policies__0__training={"algorithm": "none"},
    ),
    "only an openai engine goes without a model": changed(policies__0__model=None),
    'must be "none" for an openai engine': changed(
        policies__0__engine={
            "kind": "openai",
            "openai": {"baseUrl": "http://x", "model": "y"},
        },
        policies__0__model=None,
    ),
    "the API of an openai engine brings its own": changed(
        policies__0__engine={
            "kind": "openai",
            "openai": {"baseUrl": "http://x", "model": "y"},
        },
        policies__0__training={"algorithm": "none"},
    ),
    "must be at most tasksPerStep": changed(batch__microBatch=3),
    "each update takes equally many groups": changed(batch__updatesPerStep=3),
    "must be 0: with older versions allowed": changed(
        pipeline={"maxStaleness": 1, "deterministic": True}
    ),
    "needs pipeline.maxStaleness above 0": changed(pipeline={"partialRollout": True}),
    "remove overlap: false, or set maxStaleness to 0": changed(
        pipeline={"maxStaleness": 1, "overlap": False}
    ),
    "exactly one of name and entrypoint is needed": changed(
        workflow={"name": "debate", "entrypoint": "a:B"}
    ),
    "must be at most max": changed(
        pools=[{**POOL, "min": 3, "max": 2}],
        policies__0__pools=["gpu"],
    ),
    "a policy uses one pool of each role": changed(
        pools=[POOL, {**POOL, "name": "other"}],
        policies__0__pools=["gpu", "other"],
    ),
    "trains, and the policy is not trained": changed(
        pools=[{**POOL, "role": "trainer"}],
        policies__0__pools=["gpu"],
        policies__0__training={"algorithm": "none"},
    ),
    "name it in a policy": changed(pools=[POOL]),
    "the pool has no gpus": changed(
        pools=[{**POOL, "gpuResource": "amd.com/gpu"}], policies__0__pools=["gpu"]
    ),
    "or tolerate every taint with operator: Exists": placed(tolerations=[{"effect": "NoSchedule"}]),
    "Exists asks for no value": placed(
        tolerations=[{"key": "gpu", "operator": "Exists", "value": "x"}]
    ),
    "only with effect: NoExecute pods are told to leave": placed(
        tolerations=[{"key": "gpu", "operator": "Exists", "tolerationSeconds": 9}]
    ),
    "must be name or vendor.example/name": placed(nodeSelector={"a pool": "fast"}),
    "0 makes all episodes of a group alike": changed(agents__0__sampling={"temperature": 0}),
    "must start with bytes://, file://, pypi:// or hf://": changed(
        policies__0__tokenizer="s3://bucket/tokenizer"
    ),
    "the store at url has its own limit": changed(store={"url": "redis://x", "maxMemoryMib": 64}),
    "on a cluster they lie in the claim of the run": changed(
        checkpoint={"uri": "file:///tmp/checkpoints"}
    ),
    "the claim that name stands for exists already": changed(
        checkpoint={"claim": {"name": "mine", "size": "1Gi"}}
    ),
    "which one claim serves only when it is ReadWriteMany": changed(
        network={"hostNetwork": True}, roles={"trainer": {"replicas": 2}}
    ),
    "only hf:// and s3:// are fetched": changed(data__secretRef={"name": "keys"}),
    "at most one of image and git is needed": changed(
        workflow={"entrypoint": "team:Team"},
        code={"image": "team:1", "git": {"url": "https://host/team.git"}},
    ),
    "at most one of url and secretRef is needed": changed(
        store={"url": "redis://x", "secretRef": {"name": "y"}}
    ),
}
"""What both `flexmarl validate` and the API server say of it -> the job."""
