"""The rollout workers of a job: user code runs here only."""

from __future__ import annotations

from flexmarl.controller.names import WORKER, Manifest, selector
from flexmarl.controller.render.experience import experience_address
from flexmarl.controller.render.parts import Installation, Pods, Subject
from flexmarl.controller.render.pods import workload
from flexmarl.controller.render.shared import service


def workers(subject: Subject, installation: Installation) -> list[Manifest]:
    name, role = worker_service(subject), subject.job.spec.roles.worker
    code = subject.job.spec.code
    image = (code.image if code else None) or installation.images["slim"]
    env = {"experience": experience_address(subject)}
    policies = tuple(subject.job.spec.local_policies)
    pods = Pods(
        WORKER,
        image,
        env,
        template=role.template,
        startup_seconds=role.startup_seconds,
        policies=policies,
    )
    match = selector(subject.name, WORKER)
    spec = {"replicas": role.replicas, "selector": {"matchLabels": match}}
    return [
        service(subject, name, WORKER, match),
        workload(subject, installation, pods, kind="Deployment", name=name, spec=spec),
    ]


def worker_service(subject: Subject) -> str:
    return subject.child("worker")
