"""Makes the job's workflow: built in, installed or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from pydantic import BaseModel

from flexmarl.contracts.job import WorkflowSpec
from flexmarl.contracts.problems import FieldPath, Problem, show
from flexmarl.rollout.plugins import (
    JobCodeError,
    cannot_be_called,
    configured,
    find,
    is_async,
    made,
    method_cannot_be_called,
)
from flexmarl.rollout.workflows.base import CONFIG, FunctionWorkflow, NoConfig, Workflow
from flexmarl.rollout.workflows.debate import Debate
from flexmarl.rollout.workflows.mixture_of_agents import MixtureOfAgents
from flexmarl.rollout.workflows.planner_executor import PlannerExecutor
from flexmarl.rollout.workflows.play import Play
from flexmarl.rollout.workflows.single import Single
from flexmarl.rollout.workflows.solver_verifier import SolverVerifier

WORKFLOWS: dict[str, type[Workflow]] = {
    "single": Single,
    "solver-verifier": SolverVerifier,
    "debate": Debate,
    "planner-executor": PlannerExecutor,
    "mixture-of-agents": MixtureOfAgents,
    "environment": Play,
}
FIELD: FieldPath = ("spec", "workflow")


def make_workflow(spec: WorkflowSpec, agents: Sequence[str]) -> Workflow:
    """The workflow that the job names, its configuration checked; JobCodeError."""
    found = find("workflow", spec.name, spec.entrypoint, WORKFLOWS, FIELD)
    value, path = (
        spec.entrypoint or spec.name,
        (*FIELD, "entrypoint" if spec.entrypoint else "name"),
    )
    if inspect.isclass(found) and issubclass(found, Workflow):
        refusal = _no_workflow(found)
    elif inspect.isroutine(found) and is_async(found):
        refusal = cannot_be_called(found, "task", "team")
    else:
        refusal = "wanted is a subclass of flexmarl.rollout.api.Workflow or an async function"
    if refusal:
        says = f"{show(value)} is no workflow: {refusal}"
        raise JobCodeError(Problem(path, says, "it runs as: await run(task, team)"))
    if inspect.isroutine(found):
        configured(NoConfig, spec.config, CONFIG)
        return FunctionWorkflow(found, agents)
    kind: type[Workflow] = found
    config = configured(kind.Config, spec.config, CONFIG)
    return made(kind, config, agents, value=value, path=path)


def _no_workflow(kind: type[Workflow]) -> str:
    """What keeps the class from being used; empty: nothing."""
    if kind.run is Workflow.run:
        return "it has no run of its own"
    for name, arguments in (("run", ("task", "team")), ("start", ()), ("close", ())):
        if not is_async(getattr(kind, name)):
            return f"its {name} is no async function"
        if refusal := method_cannot_be_called(kind, name, *arguments):
            return f"its {name} cannot be called: {refusal}"
    if not (inspect.isclass(kind.Config) and issubclass(kind.Config, BaseModel)):
        return "its Config is no subclass of flexmarl.rollout.api.Config"
    return ""
