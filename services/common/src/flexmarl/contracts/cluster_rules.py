"""Rules about pools, claims and secrets: what only a cluster has.

Like `contracts.rules`, of which these are a part: pure, over the document as it was written.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from flexmarl.contracts.cluster import PoolRole, ShmSpec
from flexmarl.contracts.places import Place
from flexmarl.contracts.policy import EngineKind
from flexmarl.contracts.problems import Problem, format_path, nearest, one_of, show
from flexmarl.contracts.quantities import mebibytes, quantity
from flexmarl.contracts.sizes import PROCESS_BYTES

POD_ROLES = ("orchestrator", "worker", "engine", "trainer", "experience")
CLUSTER_FIELDS = (
    ("suspend",), ("suspendTimeout",), ("managedBy",), ("activeDeadlineSeconds",),
    ("ttlSecondsAfterFinished",), ("cache",), ("shm",), ("network",), ("gang",),
    ("store", "secretRef"), ("data", "secretRef"), ("eval", "data", "secretRef"),
    ("checkpoint", "claim"), ("code", "image"), ("code", "configMap"), ("code", "git"),
    *(("roles", role, key) for role in POD_ROLES for key in ("template", "startupSeconds")),
)  # fmt: skip
"""Below spec: without a meaning on one machine."""
LOCAL_FIELDS = (
    ("roles", "weights"), ("roles", "store"), ("store", "maxMemoryMib"),
    *(("roles", role, "restartPolicy", "backoff") for role in POD_ROLES),
)  # fmt: skip
"""Below spec: without a meaning on a cluster, where Kubernetes starts again what ends."""
POOL_FIELDS = ("gpus", "gpuResource", "nodeSelector", "tolerations", "max", "template")
"""Of a pool."""


def only_on_clusters(document: Any) -> list[str]:
    """The fields given in the document that mean nothing on one machine."""
    spec = Place(document)["spec"]
    found = _given(spec, CLUSTER_FIELDS)
    for policy in spec["policies"].items():
        warm = policy["training"]["warmStart"]
        own = (policy["model"]["secretRef"], warm["data"]["secretRef"])
        found += [format_path(place.path) for place in own if place.given]
    for pool in spec["pools"].items():
        found += [format_path(pool[key].path) for key in POOL_FIELDS if pool[key].given]
    return found


def only_on_one_machine(document: Any) -> list[str]:
    """The fields given in the document that mean nothing on a cluster."""
    return _given(Place(document)["spec"], LOCAL_FIELDS)


def check_for_cluster(document: Any) -> list[Problem]:
    """What is wrong with a whole document on a cluster only."""
    uri = Place(document)["spec"]["checkpoint"]["uri"]
    allowed = "on a cluster they lie in the claim of the run, checkpoint.claim; remove it"
    says = "checkpoints would be lost with their pod"
    return [Problem(uri.path, says, allowed)] if uri.given else []


def _given(spec: Place, paths: Iterable[tuple[str, ...]]) -> list[str]:
    found = []
    for path in paths:
        place = spec
        for key in path:
            place = place[key]
        if place.given:
            found.append(format_path(place.path))
    return found


def pools_and_policies_belong_together(spec: Place) -> Iterator[Problem]:
    pools = {name: pool for pool in spec["pools"].items() if (name := pool["name"].text())}
    users: dict[str, list[str]] = {name: [] for name in pools}
    for policy in spec["policies"].items():
        roles: dict[str, str] = {}
        for place in policy["pools"].items():
            name = place.text()
            if name is not None and name not in pools:
                there = f"there is {one_of(pools)}"
                yield Problem(
                    place.path, f"no pool is named {show(name)}", there, nearest(name, pools)
                )
            elif name is not None:
                users[name].append(policy["name"].text() or "")
                role = pools[name]["role"].text() or ""
                if role in roles:
                    yield Problem(
                        place.path,
                        f"{show(roles[role])} has the role {role}, too",
                        "a policy uses one pool of each role",
                    )
                roles[role] = name
        for name in set(roles.values()):
            if pools[name]["role"].text() == PoolRole.TRAINER and not _trained(policy):
                yield Problem(
                    policy["pools"].path,
                    f"{show(name)} trains, and the policy is not trained",
                    "remove it",
                )
    for name, pool in pools.items():
        if not users[name]:
            yield Problem(pool["name"].path, f"no policy uses {show(name)}", "name it in a policy")


def engines_are_shared_by_the_like(spec: Place) -> Iterator[Problem]:
    """An engine of a pool serves any policy that names it: one image, one kind."""
    pools = {
        name: pool
        for pool in spec["pools"].items()
        if (name := pool["name"].text()) and pool["role"].text() == PoolRole.ENGINE
    }
    kinds: dict[str, str] = {}
    alone: set[str] = set()
    for policy in spec["policies"].items():
        kind = policy["engine"]["kind"].text() or EngineKind.TRANSFORMERS
        used = [place for place in policy["pools"].items() if place.text() in pools]
        for place in used:
            name = place.text() or ""
            first = kinds.setdefault(name, kind)
            if kind == EngineKind.OPENAI:
                yield Problem(
                    place.path,
                    f"{show(name)} has engines, and an API serves the policy",
                    "remove it",
                )
            elif kind != first:
                yield Problem(
                    place.path,
                    f"{show(name)} has engines of kind {first}, the policy's is {kind}",
                    "policies that share engines have one engine kind",
                )
        if not used and kind != EngineKind.OPENAI:
            alone.add(policy["name"].text() or "")
    for name in sorted(pools.keys() & alone):
        yield Problem(
            pools[name]["name"].path,
            f"{show(name)} is a policy with engines of its own, too",
            "choose another name",
        )


def pools_have_room(spec: Place) -> Iterator[Problem]:
    for pool in spec["pools"].items():
        least, most = pool["min"].number(1), pool["max"].number(1)
        if least and most and least > most:
            place = pool["min"] if pool["min"].given else pool
            yield Problem(
                place.path, f"{show(least)}, but max is {show(most)}", "must be at most max"
            )
        if pool["gpuResource"].given and not pool["gpus"].number():
            yield Problem(
                pool["gpuResource"].path, "would be ignored", "the pool has no gpus; remove it"
            )


def claims_are_found_or_made(spec: Place) -> Iterator[Problem]:
    claim = spec["checkpoint"]["claim"]
    if claim["name"].given:
        for key in ("size", "storageClass", "accessMode"):
            if claim[key].given:
                because = "the claim that name stands for exists already; remove it"
                yield Problem(claim[key].path, "would be ignored", because)
    if spec["store"]["url"].given and spec["store"]["secretRef"].given:
        yield Problem(
            spec["store"]["secretRef"].path,
            "both url and secretRef are given",
            "at most one of url and secretRef is needed",
        )


def secrets_are_for_what_is_fetched(spec: Place) -> Iterator[Problem]:
    for policy in spec["policies"].items():
        model = policy["model"]
        if model["secretRef"].given and not any(map(_fetched, (model["uri"], policy["tokenizer"]))):
            yield _secret_ignored(model["secretRef"])
    data = [spec["data"], spec["eval"]["data"]]
    data += [policy["training"]["warmStart"]["data"] for policy in spec["policies"].items()]
    for one in data:
        if one["secretRef"].given and not _fetched(one["uri"]):
            yield _secret_ignored(one["secretRef"])


def _fetched(uri: Place) -> bool:
    return (uri.text() or "").startswith(("hf://", "s3://"))


def _secret_ignored(place: Place) -> Problem:
    return Problem(place.path, "would be ignored", "only hf:// and s3:// are fetched; remove it")


def one_origin_of_code(spec: Place) -> Iterator[Problem]:
    code = spec["code"]
    if code["image"].given and code["git"].given:
        yield Problem(
            code["git"].path,
            "both image and git are given",
            "at most one of image and git is needed",
        )


def host_networks_have_room(spec: Place) -> Iterator[Problem]:
    host = spec["network"]["hostNetwork"]
    if host.value is not True:
        return
    yield Problem(
        host.path,
        "trainers and engines with gpus take ports 7070, 7071 and 9090 of their nodes, and no "
        "NetworkPolicy holds for them",
        "each of these pods needs a node of its own",
        warning=True,
    )
    claim = spec["checkpoint"]["claim"]
    trainers = [pool for pool in spec["pools"].items() if pool["role"].text() != PoolRole.ENGINE]
    counts = [pool["max"].number(1) for pool in trainers]
    most = max([spec["roles"]["trainer"]["replicas"].number(1) or 1, *(one or 1 for one in counts)])
    if most > 1 and not claim["name"].given and claim["accessMode"].text() != "ReadWriteMany":
        yield Problem(
            claim["accessMode"].path,
            "several trainers on their nodes' network are on several nodes",
            "which one claim serves only when it is ReadWriteMany",
        )


def templates_leave_the_network_alone(spec: Place) -> Iterator[Problem]:
    """On its node's network a pod finds nobody by the cluster's names, and its ports clash."""
    templates = [spec["roles"][role]["template"] for role in POD_ROLES]
    templates += [pool["template"] for pool in spec["pools"].items()]
    for template in templates:
        host = template["spec"]["hostNetwork"]
        if host.value is True:
            yield Problem(
                host.path,
                "a template cannot put pods on their nodes' network",
                "remove it; spec.network.hostNetwork does so for trainers and engines with gpus",
            )


def trainers_have_memory(spec: Place) -> Iterator[Problem]:
    """A pod must be allowed what is asked for it: a process, and shared memory."""
    size = spec["shm"]["size"].text() or str(ShmSpec.model_fields["size"].default)
    pools = [pool for pool in spec["pools"].items() if pool["role"].text() == PoolRole.TRAINER]
    templates = [spec["roles"]["trainer"]["template"], *(pool["template"] for pool in pools)]
    given = [
        container["resources"]
        for template in templates
        for container in template["spec"]["containers"].items()
        if container["name"].text() == "main"
    ]
    if any(one["requests"]["memory"].given for one in given):
        return
    for limit in (one["limits"]["memory"] for one in given):
        try:
            least = PROCESS_BYTES + quantity(size)
            enough = not limit.given or quantity(str(limit.value)) >= least
        except ValueError:  # the schema, or the API server, says so
            continue
        if not enough:
            yield Problem(
                limit.path,
                f"{show(limit.value)}, but a trainer asks for {mebibytes(least)}, shared memory "
                "among it",
                "allow it so much, make spec.shm.size smaller, or give requests.memory, too",
            )


def _trained(policy: Place) -> bool:
    return policy["training"]["algorithm"].text() != "none"


CLUSTER_RULES = (
    pools_and_policies_belong_together,
    engines_are_shared_by_the_like,
    pools_have_room,
    claims_are_found_or_made,
    secrets_are_for_what_is_fetched,
    one_origin_of_code,
    host_networks_have_room,
    templates_leave_the_network_alone,
    trainers_have_memory,
)
