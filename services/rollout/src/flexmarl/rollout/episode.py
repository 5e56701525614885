"""One run of a workflow on a task: the team that plays it and the turns that it took."""

from __future__ import annotations

import asyncio
import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from flexmarl.contracts.job import AgentSpec
from flexmarl.rollout.conversation import Conversation, Generated, Reply, Turn, TurnInfo, make_turn
from flexmarl.rollout.policies import SamplingChoice, TurnCall, TurnSource
from flexmarl.rollout.prompts import History, Message, PromptEncoder, as_history
from flexmarl.runtime.errors import FlexMARLError, InvalidJobError, InvalidRequestError
from flexmarl.runtime.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Player:
    """An agent as a group plays it: where its policy is sampled and how its prompts are made."""

    spec: AgentSpec
    source: TurnSource | None
    """None: the task does not need this agent, and its policy may be elsewhere."""
    encoder: PromptEncoder | None
    """None: an external policy, which takes messages."""
    trained: bool
    sampling: SamplingChoice

    @property
    def name(self) -> str:
        return self.spec.name


def sampling_of(spec: AgentSpec) -> SamplingChoice:
    own = spec.sampling
    return SamplingChoice(own.max_tokens, own.temperature, own.top_p, own.top_k)


class Episode:
    """What happened so far: the turns in the order in which they were asked for."""

    def __init__(self, seed: int, players: Sequence[Player]) -> None:
        self.seed = seed
        """Of this episode; its turns derive theirs from it."""
        self.turns: list[Turn] = []
        self.returned: Any = None
        """What the workflow returned."""
        self.forks = 0
        """Histories that continue a turn in changed words."""
        self.failure: FlexMARLError | None = None
        """What ended a turn for a reason that is not the program's; the group is then void."""
        self.away = False
        """A turn was given up while its engine was away."""
        self._open = True
        self._asked = 0
        self._chatting: set[asyncio.Task[Any]] = set()
        self.team: Team = MappingProxyType({player.name: Agent(self, player) for player in players})

    def last(self, agent: str) -> Turn | None:
        """The agent's latest turn; None when it took none."""
        return next((turn for turn in reversed(self.turns) if turn.agent == agent), None)

    def of(self, agent: str) -> list[Turn]:
        """The agent's turns."""
        return [turn for turn in self.turns if turn.agent == agent]

    def reward_turn(self, turn: Turn | Reply | int, reward: float) -> None:
        """Give one turn (by its number too) a reward of its own; ValueError if it is no number."""
        if not math.isfinite(reward):
            raise ValueError(f"the reward of a turn is {reward}")
        found = self.turns[turn] if isinstance(turn, int) else turn
        (found.reply if isinstance(found, Turn) else found).reward = float(reward)

    def close(self) -> None:
        """No turn counts any more; tasks of the program that still wait for one are cancelled."""
        self._open = False
        own = asyncio.current_task()
        for task in self._chatting:
            if task is not own:
                task.cancel()

    @contextmanager
    def asking(self) -> Iterator[int]:
        """While a turn is asked for; gives its number in the episode."""
        if not self._open:
            raise RuntimeError("the episode is over; this chat call comes too late")
        task = asyncio.current_task()
        assert task is not None
        self._asked += 1
        self._chatting.add(task)
        try:
            yield self._asked - 1
        except FlexMARLError as error:
            # A request that can never succeed is the program's doing (a prompt beyond the context,
            # a role without a token); everything else isn't, and the program cannot hide it.
            if isinstance(error, InvalidJobError) or not isinstance(error, InvalidRequestError):
                self.failure = error
            raise
        finally:
            self._chatting.discard(task)

    def record(self, turn: Turn) -> None:
        if self._open:
            bisect.insort(self.turns, turn, key=lambda known: known.info.order)


class Agent:
    """One role of the team in one episode."""

    def __init__(self, episode: Episode, player: Player) -> None:
        self.name = player.name
        self._episode, self._player = episode, player
        self._conversation = Conversation(player.encoder) if player.encoder else None
        self._calls = 0

    @property
    def takes_part(self) -> bool:
        """Whether it may be asked: False where `workflow.participants` leaves it out."""
        return self._player.source is not None

    @property
    def seed(self) -> int:
        """Of the episode, for whatever else in it is random."""
        return self._episode.seed

    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
    ) -> Reply:
        """The agent's next turn.

        Text starts a fresh conversation: the agent's system prompt and one user message. A list is
        the whole history; it continues an earlier turn where it repeats that turn's messages and
        its reply unchanged. Calls may run side by side. What isn't given comes from the job file.
        Raises ValueError for messages or sampling that make no sense.
        """
        episode, player = self._episode, self._player
        if player.source is None:
            raise InvalidRequestError(
                f"agent {self.name} is not a participant of this task (workflow.participants)"
            )
        history = as_history(messages, player.spec.system_prompt)
        sampling = _override(player.sampling, max_tokens, temperature, top_p, top_k)
        seed = derive_seed(episode.seed, self.name, self._calls)
        self._calls += 1
        with episode.asking() as order:
            turn = await self._turn(history, sampling, order, seed)
        episode.record(turn)
        return turn.reply

    async def _turn(
        self, history: History, sampling: SamplingChoice, order: int, seed: int
    ) -> Turn:
        about = self._about(order, sampling)
        if self._conversation is None:
            generated = await self._generate(TurnCall(history, None, sampling, seed))
            return make_turn(history, generated, about)
        opening = self._conversation.open(history)
        self._episode.forks += opening.forked
        try:
            generated = await self._generate(
                TurnCall(history, opening.prompt_ids(), sampling, seed, opening.engine)
            )
        except BaseException:
            opening.release()
            raise
        return self._conversation.close(opening, generated, about)

    async def _generate(self, call: TurnCall) -> Generated:
        assert self._player.source is not None
        try:
            return await self._player.source.generate(call)
        except asyncio.CancelledError:
            self._episode.away |= call.away
            raise

    def _about(self, order: int, sampling: SamplingChoice) -> TurnInfo:
        policy = self._player.spec.policy
        return TurnInfo(
            order,
            self.name,
            policy,
            sampling.temperature,
            sampling.max_tokens,
            sampling.truncates,
        )


Team: TypeAlias = Mapping[str, Agent]
"""Agent name -> agent."""


def _override(
    own: SamplingChoice,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
) -> SamplingChoice:
    if max_tokens is None and temperature is None and top_p is None and top_k is None:
        return own
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, must be at least 1")
    if temperature is not None and not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature}, must be 0 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}, must be above 0 and at most 1")
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k is {top_k}, must be 0 (off) or more")
    return SamplingChoice(
        own.max_tokens if max_tokens is None else max_tokens,
        own.temperature if temperature is None else temperature,
        own.top_p if top_p is None else top_p,
        own.top_k if top_k is None else top_k,
    )
