"""Checks the job's code without playing it: names, configurations, entry points and roles."""

from __future__ import annotations

from pathlib import Path

from flexmarl.contracts.job import MARLJob
from flexmarl.contracts.problems import Problem
from flexmarl.rollout.plugins import JobCodeError, add_code_path
from flexmarl.rollout.rewards.runner import make_reward
from flexmarl.rollout.workflows.registry import make_workflow


def check_job(job: MARLJob, base_dir: Path) -> list[Problem]:
    """Everything about workflow and reward that would stop the worker; imports the user's code."""
    spec = job.spec
    agents = [agent.name for agent in spec.agents]
    problems: list[Problem] = []
    try:
        add_code_path(job, base_dir)
    except JobCodeError as error:
        problems += error.problems
    try:
        workflow = make_workflow(spec.workflow, agents)
    except JobCodeError as error:
        problems += error.problems
    else:
        if spec.reward is None and not workflow.gives_rewards:
            problems.append(
                Problem(
                    ("spec", "reward"),
                    f"missing: workflow {spec.workflow.name or spec.workflow.entrypoint} returns "
                    "no rewards",
                    "name one of its own, or an entrypoint",
                )
            )
    if spec.reward is not None:
        try:
            make_reward(spec.reward, agents)
        except JobCodeError as error:
            problems += error.problems
    for place, agent in enumerate(spec.agents):
        policies = {policy.name: policy for policy in spec.policies}
        policy = policies.get(agent.policy)
        if policy is not None and policy.external and agent.sampling.top_k:
            problems.append(
                Problem(
                    ("spec", "agents", place, "sampling", "topK"),
                    f"{agent.sampling.top_k}: a chat completions API has no such parameter",
                    "0",
                )
            )
    return problems
