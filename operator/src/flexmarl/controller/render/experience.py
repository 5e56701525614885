"""The experience service of a job, and where it is found."""

from __future__ import annotations

from flexmarl.controller.names import EXPERIENCE, Manifest, selector
from flexmarl.controller.render.parts import (
    PORT,
    Installation,
    Pods,
    Subject,
    from_secret,
)
from flexmarl.controller.render.pods import workload
from flexmarl.controller.render.shared import service


def experience(subject: Subject, installation: Installation) -> list[Manifest]:
    name, role = subject.child("experience"), subject.job.spec.roles.experience
    env = {} if subject.job.spec.store.url else {"store_url": _store(subject)}
    pods = Pods(
        EXPERIENCE,
        installation.images["slim"],
        env,
        template=role.template,
        startup_seconds=role.startup_seconds,
    )
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


def experience_address(subject: Subject) -> str:
    return f"{subject.host(subject.child('experience'))}:{PORT}"


def _store(subject: Subject) -> Manifest:
    named = subject.job.spec.store.secret_ref
    if named is not None:
        return from_secret(named.name, named.key)
    return from_secret(subject.child("job"), "store-url")
