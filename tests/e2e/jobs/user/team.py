"""What the jobs of these tests bring along: a workflow, rewards and an environment."""

import time

from flexmarl.rollout.api import Episode, PlayedGroup, Task, Team


async def whoever_takes_part(task: Task, team: Team) -> dict[str, float]:
    """One after the other, each hears the one before; paid like `early_letters`."""
    heard, paid = str(task.record["question"]), {}
    for name, agent in team.items():
        if agent.takes_part:
            heard = (await agent.chat(heard)).text
            paid[name] = _share(heard)
    return paid


def early_letters(task: Task, episode: Episode) -> dict[str, float | None]:
    """The share of an agent's letters from the first half of the alphabet: any text has some."""
    return {
        agent: _share("".join(turn.text for turn in episode.of(agent))) for agent in episode.team
    }


def _share(text: str) -> float:
    return sum("a" <= letter <= "m" for letter in text) / max(len(text), 1)


def unreliable(task: Task, episode: Episode) -> dict[str, float | None] | None:
    """Raises, hangs, has no opinion or is fine: a quarter of the tasks each."""
    number = int(task.record["question"].removeprefix("q")) % 4
    if number == 0:
        raise ValueError("this reward is broken")
    if number == 1:
        time.sleep(5)
    return None if number == 2 else early_letters(task, episode)


def odd(group: PlayedGroup) -> bool:
    """Two thirds of the groups, whoever plays them: by what was said in them."""
    letters = "".join(turn.text for episode in group.episodes for turn in episode.turns)
    return len(letters) % 3 > 0
