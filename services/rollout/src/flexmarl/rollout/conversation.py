"""Conversations of one agent as the token ids that its engine saw: nothing is tokenised twice.

A history that continues an earlier turn keeps that turn's ids and adds those of the new text. It
does so only where the chat template writes the earlier part exactly as the engine saw it; where the
program or the template changed it, the history starts a sequence of its own: a fork. Two
continuations of the same turn are branches: the second starts a sequence whose shared ids are
prompt, so that no token is trained twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from flexmarl.experience.samples import VersionSpan
from flexmarl.rollout.prompts import History, Ids, PromptEncoder

Logprobs: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine or an external API answered to one turn."""

    text: str
    token_ids: Ids
    """int32 [n]; empty from an external API."""
    logprobs: Logprobs
    """float32 [n], after temperature, top-k and top-p."""
    finish_reason: str
    versions: tuple[VersionSpan, ...]
    version: int
    prompt_tokens: int
    sampled_tokens: int
    engine: str = ""
    """Address of the engine that holds this prefix now."""
    resumed: bool = False
    """A weight update cut it, and it went on at the new version."""


@dataclass(eq=False, slots=True)
class Reply:
    """What `chat` returns. Setting `reward` gives this turn a reward of its own."""

    text: str
    token_ids: Ids
    logprobs: Logprobs
    finish_reason: str
    """stop or length."""
    version: int
    """Of the weights that sampled it; the oldest where an update came in between."""
    reward: float | None = None


@dataclass(eq=False, slots=True)
class TokenSequence:
    """The ids of one conversation so far, and the turns whose tokens were sampled in it."""

    number: int
    """Counts the agent's sequences in the episode."""
    pieces: list[Ids] = field(default_factory=list)
    length: int = 0
    turns: list[Turn] = field(default_factory=list)
    busy: bool = False
    """A turn that continues it is in flight."""

    def append(self, ids: Ids) -> None:
        self.pieces.append(ids)
        self.length += len(ids)


@dataclass(frozen=True, slots=True)
class TurnInfo:
    """What is known of a turn before it is sampled."""

    order: int
    """Counts the episode's turns as they were asked for."""
    agent: str
    policy: str
    temperature: float
    max_tokens: int
    truncated: bool = False
    """By top-p or top-k."""


@dataclass(eq=False, slots=True)
class Turn:
    """One generation of one agent."""

    info: TurnInfo
    history: History
    """The prompt, system prompt included."""
    reply: Reply
    versions: tuple[VersionSpan, ...]
    prompt_tokens: int
    sampled_tokens: int
    engine: str
    sequence: TokenSequence | None = None
    """None: of an external API, which gives no ids."""
    start: int = 0
    end: int = 0
    """The sampled ids are [start, end) of the sequence."""
    prompt_text: str = ""
    resumed: bool = False
    """A weight update cut it, and it went on at the new version."""

    @property
    def agent(self) -> str:
        return self.info.agent

    @property
    def text(self) -> str:
        return self.reply.text

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.history]


@dataclass(eq=False, slots=True)
class Opening:
    """A prompt on its way to the engine; `Conversation.close` or `release` ends it."""

    history: History
    text: str
    added: Ids
    """The ids that this prompt adds to the sequence."""
    sequence: TokenSequence
    forked: bool
    engine: str
    """Which engine holds the prefix; empty: none."""

    def prompt_ids(self) -> Ids:
        """int32: all ids that the engine is to see."""
        if not self.sequence.pieces:
            return self.added
        return np.concatenate([*self.sequence.pieces, self.added])

    def release(self) -> None:
        self.sequence.busy = False


class Conversation:
    """Everything that one agent said in one episode."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self._encoder = encoder
        self._turns: list[Turn] = []
        self._sequences = 0

    def open(self, history: History) -> Opening:
        """The prompt of `history`: continued, branched off or started afresh."""
        earlier = self._continued(history) if self._turns and len(history) > 1 else None
        if earlier is None:
            text, ids = self._encoder.fresh(history)
            return self._start(history, text, ids, forked=self._changed(history))
        text = self._encoder.render(history)
        tail = self._tail(earlier, text)
        if tail is None:  # the template rewrites what was said, as those that strip <think> do
            return self._start(history, text, self._encoder.encode(text), forked=True)
        sequence = earlier.sequence
        assert sequence is not None
        if sequence.busy or sequence.turns[-1] is not earlier:
            shared = np.concatenate(sequence.pieces)[: earlier.end]
            branch = self._start(history, text, tail, forked=False)
            branch.sequence.append(shared)
            branch.engine = earlier.engine
            return branch
        sequence.busy = True
        return Opening(history, text, tail, sequence, forked=False, engine=earlier.engine)

    def close(self, opening: Opening, generated: Generated, info: TurnInfo) -> Turn:
        """The turn, its ids now part of the sequence."""
        sequence = opening.sequence
        sequence.append(opening.added)
        start = sequence.length
        sequence.append(generated.token_ids)
        turn = make_turn(opening.history, generated, info)
        turn.sequence, turn.start, turn.end = sequence, start, sequence.length
        turn.prompt_text = opening.text
        sequence.turns.append(turn)
        sequence.busy = False
        self._turns.append(turn)
        return turn

    def _start(self, history: History, text: str, ids: Ids, forked: bool) -> Opening:
        sequence = TokenSequence(self._sequences, busy=True)
        self._sequences += 1
        return Opening(history, text, ids, sequence, forked, engine="")

    def _continued(self, history: History) -> Turn | None:
        """The latest turn whose prompt and reply `history` repeats; the one free to go on first."""
        best: Turn | None = None
        best_rank = (0, False)
        for turn in self._turns:
            said = len(turn.history)
            if (
                len(history) > said
                and history[said] == ("assistant", turn.reply.text)
                and history[:said] == turn.history
            ):
                assert turn.sequence is not None
                free = not turn.sequence.busy and turn.sequence.turns[-1] is turn
                if (said, free) > best_rank:
                    best, best_rank = turn, (said, free)
        return best

    def _tail(self, turn: Turn, text: str) -> Ids | None:
        """The ids that `text` adds after `turn`; None where it says the earlier part otherwise."""
        said = turn.prompt_text + turn.reply.text
        if not text.startswith(said):
            return None
        tail = self._encoder.encode(text[len(said) :])
        sampled = turn.reply.token_ids
        if not len(sampled) or int(sampled[-1]) not in self._encoder.tokens.eos_ids:
            return tail
        # The end was sampled and is there already. A template that ends a turn with another token,
        # or none, describes another prompt than the ids would.
        return tail[1:] if len(tail) and tail[0] == sampled[-1] else None

    def _changed(self, history: History) -> bool:
        """Whether `history`, which continues no turn, repeats part of one."""
        replies = {content for role, content in history if role == "assistant"}
        return bool(replies) and any(
            turn.reply.text in replies
            or (len(history) > len(turn.history) and history[: len(turn.history)] == turn.history)
            for turn in self._turns
        )


def make_turn(history: History, generated: Generated, info: TurnInfo) -> Turn:
    """A turn outside any sequence."""
    reply = Reply(
        generated.text,
        generated.token_ids,
        generated.logprobs,
        generated.finish_reason,
        generated.version,
    )
    return Turn(
        info,
        history,
        reply,
        generated.versions,
        generated.prompt_tokens,
        generated.sampled_tokens,
        generated.engine,
        resumed=generated.resumed,
    )
