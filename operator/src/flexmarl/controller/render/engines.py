"""The engines of a job: a StatefulSet for each pool, and for each policy that uses none."""

from __future__ import annotations

from collections.abc import Mapping

from flexmarl.contracts.policy import EngineKind
from flexmarl.controller.names import ENGINE, Manifest, selector
from flexmarl.controller.render.parts import Installation, Pods, Subject
from flexmarl.controller.render.shared import (
    HEAVY,
    network,
    placement,
    pool_of,
    resources,
    service,
    stateful,
    template,
)
from flexmarl.controller.scale import Engines

IMAGE_OF = {EngineKind.SCRIPTED: "slim", EngineKind.TRANSFORMERS: "trainer"}


def engines(
    subject: Subject, installation: Installation, counts: Mapping[Engines, int]
) -> list[Manifest]:
    spec, found = subject.job.spec, []
    for at, count in sorted(counts.items()):
        pool = pool_of(spec, at.pool)
        policies = spec.engine_pools[at.pool] if pool else [at.policy]
        kind = spec.policy(policies[0]).engine.kind
        match = selector(subject.name, ENGINE, policy=at.policy, pool=at.pool)
        pods = Pods(
            ENGINE,
            installation.images[IMAGE_OF[kind]],
            {"pool": at.pool} if pool else {"policy": at.policy},
            policy=at.policy,
            policies=tuple(policies),
            pool=at.pool,
            template=template(spec.roles.engine.template, pool),
            startup_seconds=spec.roles.engine.startup_seconds,
            resources=resources(
                pool, HEAVY if kind is EngineKind.TRANSFORMERS else {}, network(spec, pool)
            ),
            placement=placement(pool, network(spec, pool)),
        )
        name = engine_service(subject, at.pool or at.policy)
        found += [
            service(subject, name, ENGINE, match, policy=at.policy, pool=at.pool),
            stateful(
                subject,
                installation,
                pods,
                name=subject.child("engine", at.pool or at.policy),
                service_name=name,
                replicas=count,
            ),
        ]
    return found


def engine_service(subject: Subject, name: str) -> str:
    """By which those of a pool, or of a policy that has its own, are found."""
    return subject.child("engines", name)
