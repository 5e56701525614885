"""The pods of a job: a function per role, each with the Service by which it is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.cluster import PoolSpec
from flexmarl.contracts.job import EngineKind, MARLJobSpec
from flexmarl.controller.names import (
    ENGINE,
    EXPERIENCE,
    ORCHESTRATOR,
    STEPS,
    TRAINER,
    WEIGHTS,
    WORKER,
    Manifest,
    selector,
)
from flexmarl.controller.render.merge import laid_over
from flexmarl.controller.render.parts import (
    PORT,
    WEIGHTS_PORT,
    Installation,
    Pods,
    Subject,
    environment,
    from_secret,
    workload,
)
from flexmarl.controller.scale import Engines, Slots
from flexmarl.runtime.process import HOPELESS

IMAGE_OF = {EngineKind.SCRIPTED: "slim", EngineKind.TRANSFORMERS: "trainer"}
HEAVY = {"requests": {"cpu": "100m", "memory": "512Mi"}}
"""What a process with torch takes before it has a model."""


def experience(subject: Subject, installation: Installation) -> list[Manifest]:
    name, role = subject.child("experience"), subject.job.spec.roles.experience
    env = {} if subject.job.spec.store.url else {"store_url": _store(subject)}
    pods = Pods(EXPERIENCE, installation.images["slim"], env, template=role.template)
    match = selector(subject.name, EXPERIENCE)
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": match},
        "strategy": {"type": "Recreate"},
    }
    return [
        service(subject, name, EXPERIENCE, match, headless=False),
        workload(subject, installation, pods, kind="Deployment", name=name, spec=spec),
    ]


def workers(subject: Subject, installation: Installation) -> list[Manifest]:
    name, role = subject.child("worker"), subject.job.spec.roles.worker
    code = subject.job.spec.code
    image = (code.image if code else None) or installation.images["slim"]
    env = {"experience": _experience(subject)}
    pods = Pods(WORKER, image, env, template=role.template)
    match = selector(subject.name, WORKER)
    spec = {"replicas": role.replicas, "selector": {"matchLabels": match}}
    return [
        service(subject, name, WORKER, match),
        workload(subject, installation, pods, kind="Deployment", name=name, spec=spec),
    ]


def engines(
    subject: Subject, installation: Installation, counts: Mapping[Engines, int]
) -> list[Manifest]:
    spec, found = subject.job.spec, []
    for policy in spec.local_policies:
        match = selector(subject.name, ENGINE, policy=policy)
        found.append(
            service(subject, engine_service(subject, policy), ENGINE, match, policy=policy)
        )
    for at, count in sorted(counts.items()):
        pool = _pool(spec, at.pool)
        kind = spec.policy(at.policy).engine.kind
        pods = Pods(
            ENGINE,
            installation.images[IMAGE_OF[kind]],
            {"policy": at.policy},
            policy=at.policy,
            pool=at.pool,
            template=_template(spec.roles.engine.template, pool),
            resources=_resources(pool, HEAVY if kind is EngineKind.TRANSFORMERS else {}),
            placement=_placement(pool),
        )
        parts = ("engine", at.pool, at.policy) if pool else ("engine", at.policy)
        found.append(
            _stateful(
                subject,
                installation,
                pods,
                name=subject.child(*parts),
                service_name=engine_service(subject, at.policy),
                replicas=count,
            )
        )
    return found


def trainers(
    subject: Subject, installation: Installation, counts: Mapping[Slots, int]
) -> list[Manifest]:
    spec, name = subject.job.spec, trainer_service(subject)
    if not counts:
        return []
    # Slots have addresses of their own, known before they are ready.
    everyone = selector(subject.name, TRAINER)
    found = [service(subject, name, TRAINER, everyone, publish_not_ready=True)]
    shm = {"name": "shm", "mountPath": "/dev/shm"}
    for at, count in sorted(counts.items()):
        pool = _pool(spec, at.pool)
        listen = {"listen": f"0.0.0.0:{WEIGHTS_PORT}", "metrics_port": 0}
        sidecar = {
            "name": WEIGHTS,
            "image": installation.images["slim"],
            "args": ["serve", WEIGHTS],
            "restartPolicy": "Always",
            "env": environment(subject, listen),
            "ports": [{"name": "weights", "containerPort": WEIGHTS_PORT, "protocol": "TCP"}],
            "startupProbe": {
                "grpc": {"port": WEIGHTS_PORT},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
                "failureThreshold": 120,
            },
            "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}},
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "job", "mountPath": "/flexmarl/job", "readOnly": True},
                shm,
            ],
        }
        env = {"experience": _experience(subject), "weights": f"$(POD_IP):{WEIGHTS_PORT}"}
        pods = Pods(
            TRAINER,
            installation.images["trainer"],
            env,
            pool=at.pool,
            template=_template(spec.roles.trainer.template, pool),
            sidecars=(sidecar,),
            volumes=(
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm.size}},
            ),
            mounts=(shm,),
            resources=_resources(pool, HEAVY),
            placement=_placement(pool),
            run_claim=True,
        )
        own = trainer_set(subject, at.pool)
        found.append(
            _stateful(subject, installation, pods, name=own, service_name=name, replicas=count)
        )
    return found


def orchestrator(
    subject: Subject, installation: Installation, counts: Mapping[Slots, int]
) -> list[Manifest]:
    """Its Job, whose condition is the outcome; nothing that is scaled stands in its template."""
    spec = subject.job.spec
    trainers, allowed = [], {}
    for at, count in sorted(counts.items()):
        for number in range(count):
            pod = f"{trainer_set(subject, at.pool)}-{number}"
            address = f"{pod}.{subject.host(trainer_service(subject))}:{PORT}"
            trainers.append(address)
            allowed[address] = list(at.policies)
    env: dict[str, Any] = {
        "experience": _experience(subject),
        "trainers": trainers,
        "discovery": {
            "workers": f"{subject.host(subject.child('worker'))}:{PORT}",
            "engines": {
                policy: f"{subject.host(engine_service(subject, policy))}:{PORT}"
                for policy in spec.local_policies
            },
        },
    }
    if len(counts) > 1:
        env["slot_policies"] = allowed
    role = spec.roles.orchestrator
    pods = Pods(
        ORCHESTRATOR,
        installation.images["slim"],
        env,
        template=role.template,
        restart="Never",
        run_claim=True,
    )
    how = {
        "backoffLimit": role.restart_policy.max,
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": "main",
                        "operator": "In",
                        "values": [HOPELESS],
                    },
                },
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
            ]
        },
    }
    name = subject.child("orchestrator")
    found = workload(subject, installation, pods, kind="Job", name=name, spec=how)
    found["metadata"]["annotations"][STEPS] = str(spec.steps)
    return [found]


def service(
    subject: Subject,
    name: str,
    role: str,
    match: Mapping[str, str],
    *,
    headless: bool = True,
    publish_not_ready: bool = False,
    policy: str = "",
) -> Manifest:
    spec: Manifest = {
        "selector": dict(match),
        "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"}],
    }
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": publish_not_ready}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": subject.metadata(name, role, policy=policy),
        "spec": spec,
    }


def engine_service(subject: Subject, policy: str) -> str:
    return subject.child("engines", policy)


def trainer_service(subject: Subject) -> str:
    return subject.child("trainers")


def trainer_set(subject: Subject, pool: str) -> str:
    return subject.child("trainer", pool) if pool else subject.child("trainer")


def _stateful(
    subject: Subject,
    installation: Installation,
    pods: Pods,
    *,
    name: str,
    service_name: str,
    replicas: int,
) -> Manifest:
    spec = {
        "replicas": replicas,
        "serviceName": service_name,
        "podManagementPolicy": "Parallel",
        "selector": {
            "matchLabels": selector(subject.name, pods.role, policy=pods.policy, pool=pods.pool)
        },
    }
    return workload(subject, installation, pods, kind="StatefulSet", name=name, spec=spec)


def _store(subject: Subject) -> Manifest:
    named = subject.job.spec.store.secret_ref
    if named is not None:
        return from_secret(named.name, named.key)
    return from_secret(subject.child("job"), "store-url")


def _experience(subject: Subject) -> str:
    return f"{subject.host(subject.child('experience'))}:{PORT}"


def _pool(spec: MARLJobSpec, name: str) -> PoolSpec | None:
    return next((pool for pool in spec.pools if pool.name == name), None)


def _template(role: Manifest | None, pool: PoolSpec | None) -> Manifest | None:
    own = pool.template if pool else None
    return laid_over(role, own) if role and own else role or own


def _resources(pool: PoolSpec | None, least: Manifest) -> Manifest:
    found = {key: dict(value) for key, value in least.items()}
    if pool and pool.gpus:
        found["limits"] = {pool.gpu_resource: str(pool.gpus)}
    return found


def _placement(pool: PoolSpec | None) -> Manifest:
    found: Manifest = {}
    if pool and pool.node_selector:
        found["nodeSelector"] = dict(pool.node_selector)
    if pool and pool.tolerations:
        found["tolerations"] = [
            one.model_dump(by_alias=True, exclude_none=True) for one in pool.tolerations
        ]
    return found
