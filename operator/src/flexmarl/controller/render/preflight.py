"""The first container of each pod: it checks what the pod was given and fetches what it needs.

Secrets that fetch are in its environment alone. Its image is the small one, whatever the pod's own
is: what is wrong is known before a large image has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexmarl.contracts.cluster import PoolSpec, SecretRef
from flexmarl.contracts.preparation import CONTAINER, PACKED, Preparation, Source
from flexmarl.controller.names import EXPERIENCE, WORKER, Manifest
from flexmarl.controller.render.needs import (
    CLAIMS_DIR,
    Need,
    claims,
    fetched,
    mounted,
    needs,
)
from flexmarl.controller.render.parts import (
    FILES_DIR,
    RUN_DIR,
    Installation,
    Pods,
    Subject,
    config_map,
    locked_down,
)

PACKED_DIR = "/flexmarl/packed"
CACHE_DIR = "/cache"
MESSAGE = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a pod template takes from here."""

    container: Manifest
    volumes: list[Manifest]
    mounts: list[Manifest]
    """Of the main container."""


def preflight(
    subject: Subject, installation: Installation, pods: Pods, mounts: Sequence[Manifest]
) -> Prepared:
    """`mounts`: those that main has besides."""
    needed = needs(subject.job.spec, pods.role, pods.policies)
    secrets = _secrets(subject, pods, needed)
    files, own, lent = _files(subject, pods)
    for number, claim in enumerate(claims(needed)):
        volume = f"claim-{number}"
        source = {"claimName": claim, "readOnly": True}
        files.append({"name": volume, "persistentVolumeClaim": source})
        own.append({"name": volume, "mountPath": f"{CLAIMS_DIR}/{claim}", "readOnly": True})
        lent.append(own[-1])
    container: Manifest = {
        "name": CONTAINER,
        "image": installation.images["slim"],
        "imagePullPolicy": installation.pull_policy,
        "command": ["python3", "-P", "-m", "flexmarl.preflight"],
        "args": [_argument(_plan(subject, pods, needed, secrets)), f"--message={MESSAGE}"],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": locked_down(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *own],
    }
    if limits := pods.resources.get("limits"):
        container["resources"]["limits"] = dict(limits)
    if secrets:
        container["envFrom"] = [
            {"prefix": prefix, "secretRef": {"name": name}} for name, prefix in secrets.items()
        ]
    url = pods.env.get("store_url")
    if isinstance(url, dict):
        container["env"] = [{"name": "FLEXMARL_STORE_URL", **url}]
    return Prepared(container, files, lent)


def laid_out(subject: Subject, pods: Pods) -> bool:
    """Whether the files beside the job have to be put to their places first."""
    return PACKED in subject.job.metadata.annotations or _clones(subject, pods)


def _clones(subject: Subject, pods: Pods) -> bool:
    code = subject.job.spec.code
    return pods.role == WORKER and code is not None and code.git is not None


def _files(subject: Subject, pods: Pods) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Volumes of the files beside the job, and where preflight and main have them."""
    entries = config_map(subject)
    lent = [{"name": "files", "mountPath": FILES_DIR, "readOnly": True}]
    if not laid_out(subject, pods):
        if entries is None:
            return [], [], []
        return [{"name": "files", "configMap": {"name": entries}}], [], lent
    volumes: list[Manifest] = [{"name": "files", "emptyDir": {}}]
    own: list[Manifest] = [{"name": "files", "mountPath": FILES_DIR}]
    if entries is not None:
        volumes.append({"name": "packed", "configMap": {"name": entries}})
        own.append({"name": "packed", "mountPath": PACKED_DIR, "readOnly": True})
    return volumes, own, lent


def _secrets(subject: Subject, pods: Pods, needed: Sequence[Need]) -> dict[str, str]:
    """Name -> how its variables begin, for Secrets of several sources may have equal keys."""
    refs: list[SecretRef | None] = [need.secret for need in fetched(needed)]
    code = subject.job.spec.code
    if code is not None and code.git is not None and _clones(subject, pods):
        refs.append(code.git.secret_ref)
    names = dict.fromkeys(ref.name for ref in refs if ref is not None)
    return {name: f"SECRET{number}_" for number, name in enumerate(names)}


def _plan(
    subject: Subject, pods: Pods, needed: Sequence[Need], secrets: dict[str, str]
) -> Preparation:
    spec = subject.job.spec
    pool = next((pool for pool in spec.pools if pool.name == pods.pool), None)
    lays_out = laid_out(subject, pods)
    writable = [CACHE_DIR, RUN_DIR, *([FILES_DIR] if lays_out else [])]

    def variables(ref: SecretRef | None) -> str:
        return secrets[ref.name] if ref is not None else ""

    code = None
    if spec.code is not None and spec.code.git is not None and _clones(subject, pods):
        git = spec.code.git
        uri = f"git+{git.url}@{git.ref}" if git.ref else f"git+{git.url}"
        code = Source(uri=uri, variables=variables(git.secret_ref))
    asks_store = pods.role == EXPERIENCE
    ca_file = spec.store.ca_file if asks_store else None
    return Preparation(
        files=PACKED_DIR if lays_out and config_map(subject) else "",
        archive=subject.job.metadata.annotations.get(PACKED, ""),
        code=code,
        into=FILES_DIR if lays_out else "",
        sources=[
            Source(uri=need.uri, part=need.part, variables=variables(need.secret))
            for need in fetched(needed)
        ],
        job=subject.uid,
        mounted=mounted(needed),
        writable=writable,
        run=RUN_DIR if pods.run_claim else "",
        experience=pods.env.get("experience", ""),
        store=asks_store,
        store_url=(spec.store.url or "") if asks_store else "",
        ca_file=f"{FILES_DIR}/{ca_file}" if ca_file and ca_file[0] != "/" else ca_file or "",
        gpus=pool.gpus if pool else 0,
        gpu_resource=_resource(pool),
        states=list(pods.states),
        together=pods.together,
        shm="/dev/shm" if pods.states else "",
    )


def _resource(pool: PoolSpec | None) -> str:
    return pool.gpu_resource if pool and pool.gpus else ""


def _argument(plan: Preparation) -> str:
    """As the kubelet leaves it alone: it would replace $(NAME)."""
    return plan.text().replace("$", "$$")
