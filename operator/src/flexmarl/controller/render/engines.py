"""The engines of a job: a StatefulSet for each policy, or for each pool it may use."""

from __future__ import annotations

from collections.abc import Mapping

from flexmarl.contracts.job import EngineKind
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
    for policy in spec.local_policies:
        match = selector(subject.name, ENGINE, policy=policy)
        found.append(
            service(subject, engine_service(subject, policy), ENGINE, match, policy=policy)
        )
    for at, count in sorted(counts.items()):
        pool = pool_of(spec, at.pool)
        kind = spec.policy(at.policy).engine.kind
        pods = Pods(
            ENGINE,
            installation.images[IMAGE_OF[kind]],
            {"policy": at.policy},
            policy=at.policy,
            policies=(at.policy,),
            pool=at.pool,
            template=template(spec.roles.engine.template, pool),
            resources=resources(
                pool, HEAVY if kind is EngineKind.TRANSFORMERS else {}, network(spec, pool)
            ),
            placement=placement(pool, network(spec, pool)),
        )
        parts = ("engine", at.pool, at.policy) if pool else ("engine", at.policy)
        found.append(
            stateful(
                subject,
                installation,
                pods,
                name=subject.child(*parts),
                service_name=engine_service(subject, at.policy),
                replicas=count,
            )
        )
    return found


def engine_service(subject: Subject, policy: str) -> str:
    return subject.child("engines", policy)
