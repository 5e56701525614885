"""A tokenizer that needs no file: one token per byte and five of its own.

Ids 0 to 255 are the bytes of UTF-8; then <|end|>, <|system|>, <|user|>, <|assistant|>, <|pad|>.
Each message is a role token, its content and <|end|>.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flexmarl.runtime.errors import InvalidRequestError

SPECIALS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>")
END, PAD = 256, 260
_IDS = {token: 256 + n for n, token in enumerate(SPECIALS)}
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")").split
_ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no token for the role ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class BytesTokenizer:
    """`models.tokenizer.Tokenizer` over bytes."""

    eos_ids = (END,)
    pad_id = PAD
    vocab_size = 256 + len(SPECIALS)

    def encode(self, text: str) -> list[int]:
        """Token ids; the five tokens, spelt out in `text`, become their ids."""
        if "<|" not in text:
            return list(text.encode())
        ids: list[int] = []
        for part in _SPLIT(text):
            special = _IDS.get(part)
            if special is None:
                ids += part.encode()
            else:
                ids.append(special)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text without the five tokens; bytes that are no UTF-8 become U+FFFD."""
        return bytes([i for i in ids if i < 256]).decode(errors="replace")

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The conversation as text; InvalidRequestError for a role that has no token."""
        try:
            text = "".join(
                [f"{_ROLES[message['role']]}{message['content']}<|end|>" for message in messages]
            )
        except KeyError as error:
            raise InvalidRequestError(
                f"a message needs a role of {', '.join(_ROLES)} and content: {error}"
            ) from error
        return text + "<|assistant|>" if add_generation_prompt else text

    def save(self, directory: Path) -> None:
        """Write the files from which AutoTokenizer loads the same tokenizer."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {letter: byte for byte, letter in byte_letters().items()}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
        )
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIALS[0],
            "pad_token": SPECIALS[-1],
            "clean_up_tokenization_spaces": False,
        }
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        (directory / "chat_template.jinja").write_text(TEMPLATE)


def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = (byte for byte in range(256) if byte not in set(plain))
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + n) for n, byte in enumerate(shifted)
    }
