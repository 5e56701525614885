"""What a user's own workflow, environment, reward or filter imports, in one place."""

from flexmarl.contracts.base import Model as Config
from flexmarl.data.tasks import Task
from flexmarl.rollout.conversation import Reply, Turn
from flexmarl.rollout.environments import (
    Environment,
    EnvironmentChoice,
    EnvironmentFactory,
    Step,
    settled,
)
from flexmarl.rollout.episode import Agent, Episode, Team
from flexmarl.rollout.filters import PlayedGroup
from flexmarl.rollout.groups import Outcome, Played
from flexmarl.rollout.needs import Need
from flexmarl.rollout.prompts import Message
from flexmarl.rollout.rewards.scorers import ScorerChoice, make_scorer
from flexmarl.rollout.workflows.base import Rewards, Workflow

__all__ = [
    "Agent",
    "Config",
    "Environment",
    "EnvironmentChoice",
    "EnvironmentFactory",
    "Episode",
    "Message",
    "Need",
    "Outcome",
    "Played",
    "PlayedGroup",
    "Reply",
    "Rewards",
    "ScorerChoice",
    "Step",
    "Task",
    "Team",
    "Turn",
    "Workflow",
    "make_scorer",
    "settled",
]
