"""What a MARLJob is on a cluster: pure functions from a job to manifests."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.cluster import GangKind
from flexmarl.contracts.slots import training_slots
from flexmarl.controller import scale
from flexmarl.controller.names import Manifest, child, owner
from flexmarl.controller.render import access, gang
from flexmarl.controller.render.engines import engines as engine_pods
from flexmarl.controller.render.experience import experience
from flexmarl.controller.render.orchestrator import orchestrator
from flexmarl.controller.render.parts import Installation, Subject
from flexmarl.controller.render.trainers import trainers
from flexmarl.controller.render.workers import workers

WORKLOADS = ("Deployment", "StatefulSet", "Job")


def render(
    subject: Subject, installation: Installation, wanted: Mapping[str, int]
) -> list[Manifest]:
    """Every object of a job that is to run, in the order in which they are applied.

    `wanted`: engines that the orchestrator asks for, by pool.
    """
    spec = subject.job.spec
    engines, slots = scale.engines(spec, wanted), training_slots(spec)
    return [
        *access.claim(subject, installation),
        access.account(subject),
        access.credentials(subject),
        access.job_file(subject),
        *access.network_policy(subject, installation),
        *group(subject),
        *experience(subject, installation),
        *engine_pods(subject, installation, engines),
        *trainers(subject, installation, slots),
        *workers(subject, installation),
        *orchestrator(subject, installation, slots),
    ]


def group(subject: Subject) -> list[Manifest]:
    """The gang: of the pods that start, whatever they are scaled to later."""
    spec = subject.job.spec
    engines, slots = scale.engines(spec, {}), training_slots(spec)
    pods = 2 + spec.roles.worker.replicas + sum(engines.values()) + sum(slots.values())
    return gang.group(spec.gang.kind, subject.metadata(subject.child("job"), "job"), pods)


def group_of(job: Mapping[str, Any]) -> list[Manifest]:
    """What tells the gang of a job as the API server has it, which need not be readable."""
    about, kind = job["metadata"], job["spec"].get("gang", {}).get("kind", GangKind.NONE)
    metadata = {
        "name": child(about["name"], "job"),
        "namespace": about["namespace"],
        "ownerReferences": [owner(about["name"], about["uid"])],
    }
    return gang.group(GangKind(kind), metadata, 0) if kind in [*GangKind] else []
