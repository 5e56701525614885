"""Tokenizers and chat templates without torch or transformers: the rollout worker needs them."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
import tokenizers

from flexmarl.contracts.policy import PolicySpec
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.models.chat_template import compiled
from flexmarl.models.sources import RandomSpec, resolve
from flexmarl.runtime.errors import InvalidJobError, InvalidRequestError

BYTES = "bytes://"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


class Tokenizer(Protocol):
    """What the worker, the trainer and the engines ask of a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a turn; at least one."""

    @property
    def pad_id(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """One above the highest id."""

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens spelt out in `text` become their ids, none is added."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text without special tokens."""

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The conversation as the chat template writes it; InvalidRequestError if it refuses."""

    def save(self, directory: Path) -> None:
        """Write the files from which AutoTokenizer loads the same tokenizer."""


def load_tokenizer(policy: PolicySpec, base_dir: Path) -> Tokenizer:
    """The tokenizer of a policy: the one it names, else its model's, else (random) bytes://."""
    uri = policy.tokenizer or (policy.model.uri if policy.model else BYTES)
    if uri == BYTES:
        return BytesTokenizer()
    source = resolve(uri, base_dir, tokenizer_only=True)
    if isinstance(source, RandomSpec):
        if policy.tokenizer:
            raise InvalidJobError(f"{uri}: a random model has no tokenizer to name; use {BYTES}")
        return BytesTokenizer()
    return FileTokenizer(source, uri)


def known_vocabulary(policy: PolicySpec, tokenizer: Tokenizer) -> int | None:
    """One above the highest id that the policy's model can sample, often more than its tokenizer
    has; None: that takes the model's own files."""
    if policy.model is None or policy.model.uri.startswith("random://"):
        return tokenizer.vocab_size
    if policy.tokenizer is None and isinstance(tokenizer, FileTokenizer):
        return tokenizer.embeddings
    return None


class FileTokenizer:
    """A tokenizer.json with its chat template."""

    def __init__(self, folder: Path, uri: str) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidJobError(
                f"{uri}: no tokenizer.json in {folder}; AutoTokenizer's save_pretrained writes one"
            )
        _json(path)  # tokenizers itself raises a bare Exception for a damaged file
        self._folder = folder
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.embeddings = _embeddings(_json(folder / "config.json"))
        """Of the model that lies beside it; None: there is none."""
        config = _json(folder / "tokenizer_config.json")
        specials = {
            key: _text(value) for key, value in config.items() if key.endswith("_token") and value
        }
        self.eos_ids = self._eos(specials.get("eos_token"), uri)
        pad = specials.get("pad_token")
        pad_id = self._tokenizer.token_to_id(pad) if pad else None
        self.pad_id = self.eos_ids[0] if pad_id is None else pad_id
        self._render = _template(folder, config, uri)
        self._variables = {**specials, "tools": None, "documents": None}

    def _eos(self, named: str | None, uri: str) -> tuple[int, ...]:
        ids = [] if named is None else [self._tokenizer.token_to_id(named)]
        for name in ("generation_config.json", "config.json"):
            configured = _json(self._folder / name).get("eos_token_id")
            ids += configured if isinstance(configured, list) else [configured]
        found = tuple(dict.fromkeys(i for i in ids if i is not None))
        if not found:
            raise InvalidJobError(f"{uri}: the tokenizer names no eos_token; a turn could not end")
        return found

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        try:
            return self._render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._variables
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error}") from error

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, directory / name)


def _template(folder: Path, config: dict[str, Any], uri: str) -> Callable[..., str]:
    file = folder / "chat_template.jinja"
    text = file.read_text() if file.is_file() else config.get("chat_template")
    if isinstance(text, list):  # named templates
        text = {entry["name"]: entry["template"] for entry in text}.get("default")
    if not text:
        raise InvalidJobError(
            f"{uri}: the tokenizer has no chat template; put a chat_template.jinja beside it"
        )
    try:
        return compiled(text)
    except jinja2.TemplateError as error:
        raise InvalidJobError(f"{uri}: its chat template is not valid: {error}") from error


def _embeddings(config: Mapping[str, Any]) -> int | None:
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping) and isinstance(rows := part.get("vocab_size"), int):
            return rows
    return None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidJobError(f"{path}: damaged: {error}") from error
    if not isinstance(content, dict):
        raise InvalidJobError(f"{path}: not a JSON object")
    return content


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
