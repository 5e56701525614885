"""What an agent is asked: messages, checked, and the text and token ids that its model sees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int32]
Message: TypeAlias = Mapping[str, str]
"""As in OpenAI's chat completions: `role` (system, user or assistant) and `content`."""
History: TypeAlias = tuple[tuple[str, str], ...]
"""Messages as (role, content)."""

ROLES = ("system", "user", "assistant")
PROMPTS_KEPT = 4096


class Tokens(Protocol):
    """What is needed of a tokenizer (`flexmarl.models.tokenizer.Tokenizer` has it)."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str: ...


def as_history(messages: str | Sequence[Message], system_prompt: str | None) -> History:
    """The messages with the agent's system prompt put first if they bring none; ValueError."""
    if isinstance(messages, str):
        asked: History = (("user", messages),)
    else:
        asked = tuple(_checked(place, message) for place, message in enumerate(messages))
        if not asked:
            raise ValueError("messages is empty")
    if system_prompt is None or asked[0][0] == "system":
        return asked
    return (("system", system_prompt), *asked)


def _checked(place: int, message: Message) -> tuple[str, str]:
    if unknown := set(message) - {"role", "content"}:
        raise ValueError(f"messages[{place}] has {sorted(unknown)}; known are role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"messages[{place}].role is {role!r}; known are {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"messages[{place}].content must be text, not {type(content).__name__}")
    return role, content


class PromptEncoder:
    """Renders and encodes; keeps the prompts that start a conversation, least recent go first."""

    def __init__(
        self, tokens: Tokens, kept: int = PROMPTS_KEPT, *, vocabulary: int | None = None
    ) -> None:
        """`vocabulary`: one above the highest id of the model; None: not known."""
        self.tokens, self.vocabulary = tokens, vocabulary
        self._kept = kept
        self._fresh: OrderedDict[History, tuple[str, Ids]] = OrderedDict()

    def render(self, history: History) -> str:
        messages = [{"role": role, "content": content} for role, content in history]
        return self.tokens.render(messages, add_generation_prompt=True)

    def encode(self, text: str) -> Ids:
        return np.asarray(self.tokens.encode(text), dtype=np.int32)

    def fresh(self, history: History) -> tuple[str, Ids]:
        """The text and ids of a prompt that continues nothing."""
        found = self._fresh.get(history)
        if found is not None:
            self._fresh.move_to_end(history)
            return found
        text = self.render(history)
        made = (text, self.encode(text))
        self._fresh[history] = made
        if len(self._fresh) > self._kept:
            self._fresh.popitem(last=False)
        return made
