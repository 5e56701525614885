"""Checks the job's code without playing it: names, configurations, entry points, roles, columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flexmarl.contracts.job import CodeSpec, MARLJob, RewardSpec, WorkflowSpec
from flexmarl.contracts.pipeline import FilterSpec
from flexmarl.contracts.problems import Problem
from flexmarl.data.participants import ParticipantsError, participants
from flexmarl.rollout.filters import filter_seconds, make_filter
from flexmarl.rollout.needs import Need, unmet
from flexmarl.rollout.plugins import JobCodeError, add_code_path
from flexmarl.rollout.rewards.runner import Reward, make_reward
from flexmarl.rollout.workflows.base import Workflow
from flexmarl.rollout.workflows.registry import WORKFLOWS, make_workflow

SpecT = TypeVar("SpecT", WorkflowSpec, RewardSpec)
MadeT = TypeVar("MadeT")


@dataclass(frozen=True, slots=True)
class JobCode:
    """The parts of a job that say what is played, each by itself: others may be broken."""

    workflow: WorkflowSpec | None
    """None: there is nothing to check; its problems are known."""
    reward: RewardSpec | None
    code: CodeSpec | None
    agents: Sequence[str]
    has_reward: bool = True
    """Whether the job names a reward at all, however broken."""
    records: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """What is played, by the field of the job file that names it."""
    filter: FilterSpec | None = None


def code_of(job: MARLJob) -> JobCode:
    """The parts of a job that holds."""
    spec = job.spec
    agents = [agent.name for agent in spec.agents]
    return JobCode(
        spec.workflow,
        spec.reward,
        spec.code,
        agents,
        spec.reward is not None,
        filter=spec.pipeline.filter,
    )


def check_code(code: JobCode, base_dir: Path) -> list[Problem]:
    """Everything about the job's code that would stop the worker; imports it."""
    try:
        add_code_path(code.code, base_dir)
    except JobCodeError as error:
        problems = list(error.problems)
        lost = True
    else:
        problems, lost = [], False
    workflow: Workflow | None = None
    reward: Reward | None = None
    # Without the folder, entry points cannot be found: that is said once.
    if code.workflow is not None and not (lost and code.workflow.entrypoint):
        workflow, found = _made(make_workflow, code.workflow, code.agents)
        problems += found
    if code.reward is not None and not (lost and code.reward.entrypoint):
        reward, found = _made(make_reward, code.reward, code.agents)
        problems += found
    if code.filter is not None and code.filter.entrypoint and not lost:
        try:
            make_filter(code.filter, filter_seconds(code.reward))
        except JobCodeError as error:
            problems += error.problems
    problems += _participants(code)
    if workflow is not None and code.workflow is not None:
        problems += _rewards(workflow, code.workflow, has_reward=code.has_reward)
    needs: list[Need] = [need for part in (workflow, reward) if part for need in part.needs()]
    return [*problems, *unmet(needs, code.records)]


def _participants(code: JobCode) -> list[Problem]:
    """The first task whose column of participants is no list of the job's agents."""
    column = code.workflow.participants if code.workflow is not None else None
    if column is None:
        return []
    for source, records in code.records.items():
        for number, record in enumerate(records, start=1):
            try:
                participants(record, column, code.agents, f"record {number} of {source}")
            except ParticipantsError as error:
                return [error.problem]
    return []


def _made(
    make: Callable[[SpecT, Sequence[str]], MadeT], spec: SpecT, agents: Sequence[str]
) -> tuple[MadeT | None, list[Problem]]:
    """What `make` makes and every problem on the way; keys of the config that are wrong go."""
    problems: list[Problem] = []
    gone: set[str] = set()
    while True:
        try:
            return make(spec, agents), problems
        except JobCodeError as error:
            # A key that went may be missed now: that is no further problem.
            problems += [one for one in error.problems if _key(one) not in gone]
            wrong = {key for one in error.problems if (key := _key(one))} - gone
        if not wrong & spec.config.keys():
            return None, problems
        gone |= wrong
        left = {key: value for key, value in spec.config.items() if key not in gone}
        spec = spec.model_copy(update={"config": left})


def _key(problem: Problem) -> str:
    """The key of workflow.config or reward.config that it is about; empty: another field."""
    inside = problem.path[2:3] == ("config",) and len(problem.path) > 3
    return str(problem.path[3]) if inside else ""


def _rewards(workflow: Workflow, spec: WorkflowSpec, *, has_reward: bool) -> list[Problem]:
    if not has_reward and not workflow.gives_rewards:
        return [
            Problem(
                ("spec", "reward"),
                f"missing: workflow {spec.name or spec.entrypoint} returns no rewards",
                "name one of its own, or an entrypoint",
            )
        ]
    if has_reward and workflow.gives_rewards and spec.name in WORKFLOWS:
        return [
            Problem(
                ("spec", "reward"),
                f"takes the place of the rewards that workflow {spec.name} gives by itself",
                warning=True,
            )
        ]
    return []
