"""Tokenizers, scripted turn sources and a team for tests of the rollout worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flexmarl.contracts.job import AgentSpec, MARLJob
from flexmarl.experience.samples import VersionSpan
from flexmarl.models.bytes_tokenizer import BytesTokenizer, byte_letters
from flexmarl.models.tokenizer import FileTokenizer
from flexmarl.rollout.checks import check_code, code_of
from flexmarl.rollout.conversation import Generated
from flexmarl.rollout.episode import Episode, Player, sampling_of
from flexmarl.rollout.policies import TurnCall
from flexmarl.rollout.prompts import History, PromptEncoder, Tokens

# As Qwen3's: what an earlier turn thought is not shown again.
THINKING_TEMPLATE = """
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


@pytest.fixture
def im_tokenizer(tmp_path: Path) -> Callable[[str], FileTokenizer]:
    """A byte-level tokenizer that merges `ab`, with Qwen's markers and a given chat template."""

    def make(template: str = THINKING_TEMPLATE) -> FileTokenizer:
        vocabulary = {letter: byte for byte, letter in byte_letters().items()}
        vocabulary["ab"] = 256
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 259]}')
        (tmp_path / "chat_template.jinja").write_text(template)
        return FileTokenizer(tmp_path, "file://test")

    return make


def generated(tokens: Tokens, ids: list[int], finish_reason: str = "stop") -> Generated:
    return Generated(
        text=tokens.decode(ids),
        token_ids=np.asarray(ids, dtype=np.int32),
        logprobs=np.asarray([-0.5 - n for n in range(len(ids))], dtype=np.float32),
        finish_reason=finish_reason,
        versions=(VersionSpan(3, 0, len(ids)),),
        version=3,
        prompt_tokens=0,
        sampled_tokens=len(ids),
    )


@pytest.fixture
def make_generated() -> Callable[..., Generated]:
    return generated


class ScriptedSource:
    """Answers with what `say` makes of the history; keeps the calls."""

    def __init__(self, say: Callable[[History], str]) -> None:
        self.say, self.tokens = say, BytesTokenizer()
        self.calls: list[TurnCall] = []

    async def generate(self, call: TurnCall) -> Generated:
        self.calls.append(call)
        return generated(self.tokens, [*self.tokens.encode(self.say(call.history)), 256])


@pytest.fixture
def make_source() -> Callable[[Callable[[History], str]], ScriptedSource]:
    return ScriptedSource


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    """An episode whose agents say what the given functions make of the history."""

    def make(seed: int = 7, **agents: Callable[[History], str]) -> Episode:
        players = [
            Player(
                spec := AgentSpec(name=name, policy=name, system_prompt=f"You are {name}."),
                ScriptedSource(say),
                PromptEncoder(BytesTokenizer()),
                trained=True,
                sampling=sampling_of(spec),
            )
            for name, say in agents.items()
        ]
        return Episode(seed, players)

    return make


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """The problems of a job whose own module is `checked`, as text."""

    def run(module: str = "", /, **changes: Any) -> list[str]:
        (tmp_path / "checked.py").write_text(module)
        spec = {
            "policies": [
                {"name": "a", "model": {"uri": "random://llama?hidden=64&layers=2&heads=4"}}
            ],
            "agents": [{"name": "a", "policy": "a"}],
            "workflow": {"name": "single"},
            "reward": {"name": "exact-match"},
            "code": {"path": "."},
            "data": {"uri": "file://x.jsonl"},
            "steps": 1,
        }
        job = MARLJob.model_validate({"metadata": {"name": "x"}, "spec": spec | changes})
        return [str(problem) for problem in check_code(code_of(job), tmp_path)]

    yield run
    sys.modules.pop("checked", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))
