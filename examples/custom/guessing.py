"""A guessing game for two agents: one's own workflow, environment and reward.

Only the rollout worker imports this file. `flexmarl validate job.yaml` imports it too and says what
is wrong with it before anything starts.
"""

from __future__ import annotations

import random
import re

from flexmarl.rollout.api import (
    Config,
    EnvironmentChoice,
    EnvironmentFactory,
    Episode,
    Need,
    Step,
    Task,
    Team,
    Workflow,
    settled,
)

NUMBER = re.compile(r"-?\d+")


class NumberGame:
    """The environment: it thinks of a number; the agent has to name it."""

    def __init__(self, hints: bool = True) -> None:
        """Called once per episode with the `config` of the job file."""
        self.hints = hints

    def reset(self, task: Task, seed: int) -> str:
        low, high = task.record["low"], task.record["high"]
        self.secret = random.Random(seed).randint(low, high)
        return f"I think of a number from {low} to {high}."

    def step(self, text: str) -> Step:
        found = NUMBER.search(text)
        if found is None:
            return Step("That is no number.")
        guess = int(found[0])
        if guess == self.secret:
            return Step("Right!", reward=1.0, done=True)
        return Step("Higher." if guess < self.secret and self.hints else "No.")


class ScoutAndGuessConfig(Config):
    """What `workflow.config` may hold; anything else is refused with the nearest match."""

    environment: EnvironmentChoice
    turns: int = 4


class ScoutAndGuess(Workflow):
    """The scout reads the task first; the guesser then plays with the scout's advice."""

    Config = ScoutAndGuessConfig

    def __init__(self, config: ScoutAndGuessConfig, agents: tuple[str, ...]) -> None:
        super().__init__(config, agents)
        path = ("spec", "workflow", "config", "environment")
        self.games = EnvironmentFactory(config.environment, path)

    def needs(self) -> list[Need]:
        """The columns that every task must have: `flexmarl validate` finds one that is missing."""
        return [Need(name, ("spec", "data"), filled=True) for name in ("low", "high")]

    async def run(self, task: Task, team: Team) -> None:
        game = self.games.make()
        opening = await settled(game.reset(task, team["guesser"].seed))
        advice = await team["scout"].chat(f"{opening} How should one search?")
        heard = [{"role": "user", "content": f"{opening} Advice: {advice.text}"}]
        for _ in range(self.config.turns):
            reply = await team["guesser"].chat(heard)
            step = await settled(game.step(reply.text))
            reply.reward = step.reward  # of this turn; the job's reward is the episode's
            if step.done:
                break
            heard += [
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": step.observation},
            ]


def closeness(task: Task, episode: Episode, scout_share: float) -> dict[str, float | None]:
    """The reward: 1 for the right number, less the more turns it took; `scout_share` is configured.

    None leaves the scout out where it cannot be judged: the guesser never named a number. This runs
    in a thread, at most `reward.timeout` seconds; an exception excludes the episode. Only C code
    that never lets go of the interpreter escapes the timeout, such as a pattern of `re` that
    explodes on what a model wrote: it ends the worker after a minute. `regex.search(...,
    timeout=1, concurrent=True)` does not.
    """
    guesses = [turn for turn in episode.of("guesser") if NUMBER.search(turn.text)]
    if not guesses:
        return {"guesser": 0.0, "scout": None}
    right = any(turn.reply.reward for turn in guesses)
    earned = 1.0 / len(episode.of("guesser")) if right else 0.1
    return {"guesser": earned, "scout": scout_share * earned}
