"""Makes the job's workflow: built in, installed or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from flexmarl.contracts.job import WorkflowSpec
from flexmarl.contracts.problems import FieldPath, Problem, show
from flexmarl.rollout.plugins import JobCodeError, configured, find
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
    if inspect.iscoroutinefunction(found):
        configured(NoConfig, spec.config, CONFIG)
        return FunctionWorkflow(found, agents)
    if not (inspect.isclass(found) and issubclass(found, Workflow)):
        raise JobCodeError(
            Problem(
                (*FIELD, "entrypoint" if spec.entrypoint else "name"),
                f"{show(spec.entrypoint or spec.name)} is no workflow",
                "a subclass of flexmarl.rollout.api.Workflow or an async function of task and team",
            )
        )
    return found(configured(found.Config, spec.config, CONFIG), agents)
