"""The training slots of a job, each with the sidecar that keeps its tensors."""

from __future__ import annotations

from collections.abc import Mapping

from flexmarl.contracts.cluster import ShmSpec
from flexmarl.contracts.policy import PolicySpec
from flexmarl.contracts.preparation import State
from flexmarl.contracts.quantities import mebibytes, quantity
from flexmarl.contracts.sizes import PARAMETER_BYTES, PROCESS_BYTES, random_parameters
from flexmarl.contracts.slots import Slots
from flexmarl.controller.names import TRAINER, WEIGHTS, Manifest, selector
from flexmarl.controller.render.experience import experience_address
from flexmarl.controller.render.parts import (
    WEIGHTS_PORT,
    Installation,
    Pods,
    Subject,
    environment,
    liveness,
)
from flexmarl.controller.render.shared import (
    HEAVY,
    placement,
    pool_of,
    resources,
    service,
    stateful,
    template,
)

SHM = {"name": "shm", "mountPath": "/dev/shm"}


def trainers(
    subject: Subject, installation: Installation, counts: Mapping[Slots, int]
) -> list[Manifest]:
    spec, name = subject.job.spec, trainer_service(subject)
    if not counts:
        return []
    # Slots have addresses of their own, known before they are ready.
    everyone = selector(subject.name, TRAINER)
    found = [service(subject, name, TRAINER, everyone, publish_not_ready=True)]
    for at, count in sorted(counts.items()):
        pool = pool_of(spec, at.pool)
        env = {"experience": experience_address(subject), "weights": f"$(POD_IP):{WEIGHTS_PORT}"}
        pods = Pods(
            TRAINER,
            installation.images["trainer"],
            env,
            pool=at.pool,
            template=template(spec.roles.trainer.template, pool),
            startup_seconds=spec.roles.trainer.startup_seconds,
            sidecars=(weights(subject, installation),),
            volumes=(
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm.size}},
            ),
            mounts=(SHM,),
            resources=resources(pool, _requests(spec.shm), spec.network),
            placement=placement(pool, spec.network),
            run_claim=True,
            policies=at.policies,
            states=tuple(_state(spec.policy(name)) for name in at.policies),
            together=count < len(at.policies),
        )
        own = trainer_set(subject, at.pool)
        found.append(
            stateful(subject, installation, pods, name=own, service_name=name, replicas=count)
        )
    return found


def _requests(shm: ShmSpec) -> Manifest:
    """Shared memory is memory of the pod, too."""
    memory = mebibytes(PROCESS_BYTES + quantity(shm.size))
    return {"requests": {**HEAVY["requests"], "memory": memory}}


def _state(policy: PolicySpec) -> State:
    assert policy.model is not None  # it is trained
    return State(
        policy=policy.name,
        parameter_bytes=PARAMETER_BYTES[policy.model.dtype],
        uri=policy.model.uri,
        parameters=random_parameters(policy),
    )


def trainer_service(subject: Subject) -> str:
    return subject.child("trainers")


def trainer_set(subject: Subject, pool: str) -> str:
    return subject.child("trainer", pool) if pool else subject.child("trainer")


def weights(subject: Subject, installation: Installation) -> Manifest:
    """Native sidecar: it outlives the trainer's process, and with it the pod's tensors.

    Without a startup probe the trainer begins beside it, and answers once this one does.
    """
    listen = {"listen": f"0.0.0.0:{WEIGHTS_PORT}", "metrics_port": 0}
    return {
        "name": WEIGHTS,
        "image": installation.images["slim"],
        "args": ["serve", WEIGHTS],
        "restartPolicy": "Always",
        "env": environment(subject, listen),
        "ports": [{"name": "weights", "containerPort": WEIGHTS_PORT, "protocol": "TCP"}],
        "livenessProbe": liveness(WEIGHTS_PORT),
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "job", "mountPath": "/flexmarl/job", "readOnly": True},
            SHM,
        ],
    }
