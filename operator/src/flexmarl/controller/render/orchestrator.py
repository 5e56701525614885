"""The orchestrator of a job: it is told which slots exist and finds everyone else by DNS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.preparation import CONTAINER, PASSING
from flexmarl.contracts.slots import Slots
from flexmarl.controller import scale
from flexmarl.controller.names import ORCHESTRATOR, STEPS, Manifest
from flexmarl.controller.render.engines import engine_service
from flexmarl.controller.render.experience import experience_address
from flexmarl.controller.render.parts import PORT, Installation, Pods, Subject
from flexmarl.controller.render.pods import workload
from flexmarl.controller.render.trainers import trainer_service, trainer_set
from flexmarl.controller.render.workers import worker_service
from flexmarl.runtime.process import HOPELESS


def orchestrator(
    subject: Subject, installation: Installation, counts: Mapping[Slots, int]
) -> list[Manifest]:
    """Its Job, whose condition is the outcome; nothing that is scaled stands in its template."""
    spec = subject.job.spec
    own = sorted(scale.engines(spec, {}))
    trainers, allowed = [], {}
    for at, count in sorted(counts.items()):
        for number in range(count):
            pod = f"{trainer_set(subject, at.pool)}-{number}"
            address = f"{pod}.{subject.host(trainer_service(subject))}:{PORT}"
            trainers.append(address)
            allowed[address] = list(at.policies)
    env: dict[str, Any] = {
        "experience": experience_address(subject),
        "trainers": trainers,
        "discovery": {
            "workers": f"{subject.host(worker_service(subject))}:{PORT}",
            "engines": {one.policy: _found_at(subject, one.policy) for one in own if one.policy},
            "pools": {one.pool: _found_at(subject, one.pool) for one in own if one.pool},
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
        startup_seconds=role.startup_seconds,
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
                _rule("FailJob", "main", HOPELESS),
                # Whether HOPELESS ends the job, its status decides: one that has run goes on.
                _rule("Ignore", CONTAINER, HOPELESS, PASSING),
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


def _rule(action: str, container: str, *codes: int) -> Manifest:
    """What the Job does when a container ends with one of these exit codes, in order."""
    how = {"containerName": container, "operator": "In", "values": [*codes]}
    return {"action": action, "onExitCodes": how}


def _found_at(subject: Subject, engines_of: str) -> str:
    return f"{subject.host(engine_service(subject, engines_of))}:{PORT}"
