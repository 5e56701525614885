"""Workflows: the base class and those built in."""

from flexmarl.rollout.workflows.base import FunctionWorkflow, Rewards, Workflow

__all__ = ["FunctionWorkflow", "Rewards", "Workflow"]
