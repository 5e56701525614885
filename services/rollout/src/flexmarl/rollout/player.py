"""Plays one episode: runs the workflow, asks for the reward, and says how it ended.

Whatever the user's code does wrong ends its episode only, excluded and counted (`border`). What
else goes wrong (a stale version, an engine that stays away, a job that cannot work) is raised: the
group is void, and the orchestrator decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from flexmarl.data.tasks import Task
from flexmarl.rollout import border
from flexmarl.rollout.border import ExitError, OverdueError, raised_at, words
from flexmarl.rollout.episode import Episode, Player
from flexmarl.rollout.groups import Outcome, Played
from flexmarl.rollout.once import Once
from flexmarl.rollout.rewards.errors import RewardError, RewardTimeoutError
from flexmarl.rollout.rewards.runner import Reward, per_agent
from flexmarl.rollout.workflows.base import Workflow
from flexmarl.runtime.errors import InvalidJobError, UnavailableError

DETAIL_CHARACTERS = 500
log = structlog.get_logger()

Verdict = tuple[Outcome, str, dict[str, float | None]]


class EpisodePlayer:
    """Plays episodes of one job; `reward` is the job's, if it names one."""

    def __init__(
        self, workflow: Workflow, reward: Reward | None, agents: Sequence[str], seconds: float
    ) -> None:
        self._workflow, self._reward = workflow, reward
        self._agents, self._seconds = tuple(agents), seconds
        self._once = Once()

    async def play(
        self, number: int, task: Task, seed: int, players: Sequence[Player], train: bool
    ) -> Played:
        """The episode after its end. FlexMARLError: the whole group is void."""
        episode = Episode(seed, players)
        outcome, detail = await self._run(episode, task)
        rewards: dict[str, float | None] = {}
        if outcome is Outcome.OK:
            heard = {player.name for player in players if player.trained or not train}
            if not any(turn.info.agent in heard for turn in episode.turns):
                outcome, detail = Outcome.NO_TURNS, "no agent that could learn took a turn"
            else:
                outcome, detail, rewards = await self._judge(episode, task)
                for player in players:
                    if player.source is None and player.name in rewards:
                        rewards[player.name] = None  # a reward for all is not for who is not there
        return Played(number, outcome, detail, episode.turns, rewards, episode.forks)

    async def _run(self, episode: Episode, task: Task) -> tuple[Outcome, str]:
        outcome, detail = Outcome.OK, ""
        run = partial(self._workflow.run, task, episode.team)
        try:
            episode.returned = await border.call(run, self._seconds)
        except InvalidJobError:
            raise
        except RewardError as error:  # of a scorer that the workflow asked
            outcome, detail = self._of_reward(error)
        except OverdueError as error:
            outcome = Outcome.TIMEOUT
            detail = f"took more than {self._seconds} s; {error}".rstrip("; ")
        except Exception as error:  # the user's: anything may be raised
            if episode.failure is None:
                outcome, detail = self._broken(Outcome.WORKFLOW_ERROR, error)
        finally:
            episode.close()
        if episode.failure is not None:
            raise episode.failure
        if outcome is Outcome.TIMEOUT and episode.away:
            raise UnavailableError(
                f"an engine stayed away beyond the episode's timeout of {self._seconds} s"
            )
        return outcome, detail

    async def _judge(self, episode: Episode, task: Task) -> Verdict:
        """The job's reward outranks what the workflow returned."""
        try:
            said: Any = episode.returned
            if self._reward is not None:
                said = await self._reward.reward(task, episode)
            with border.exits():  # numbers may be the user's, too
                rewards = per_agent(said, self._agents)
                for turn in episode.turns:
                    reward = turn.reply.reward
                    if reward is not None and not math.isfinite(reward):
                        raise RewardError(f"the reward of a turn of {turn.agent!r} is {reward}")
                    turn.reply.reward = None if reward is None else float(reward)
        except InvalidJobError:
            raise
        except RewardError as error:
            return *self._of_reward(error), {}
        except Exception as error:  # the user's: anything may be raised
            return *self._broken(Outcome.REWARD_ERROR, error), {}
        scored = any(reward is not None for reward in rewards.values())
        return (Outcome.OK if scored else Outcome.UNSCORABLE), "", rewards

    def _of_reward(self, error: RewardError) -> tuple[Outcome, str]:
        late = isinstance(error, RewardTimeoutError)
        outcome = Outcome.REWARD_TIMEOUT if late else Outcome.REWARD_ERROR
        text = str(error)[:DETAIL_CHARACTERS]
        if self._once.first((outcome, text[:80])):
            log.warning("no reward", why=outcome, detail=text)
        return outcome, text

    def _broken(self, outcome: Outcome, error: Exception) -> tuple[Outcome, str]:
        if self._once.first((outcome, raised_at(error))):
            log.error("episode failed", why=outcome, exc_info=error)
        raised = error.raised if isinstance(error, ExitError) else error
        return outcome, words(raised)[:DETAIL_CHARACTERS]
