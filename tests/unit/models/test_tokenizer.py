"""Tokenizers: the byte one equals its saved form; files behave as the library's own loader."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.policy import PolicySpec
from flexmarl.models.bytes_tokenizer import SPECIALS, BytesTokenizer
from flexmarl.models.tokenizer import FileTokenizer, known_vocabulary, load_tokenizer
from flexmarl.runtime.errors import InvalidJobError, InvalidRequestError

RANDOM = "random://llama?hidden=8&layers=1&heads=2"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "é"},
    {"role": "assistant", "content": ""},
]
BYTES = BytesTokenizer()


def policy(**fields: object) -> PolicySpec:
    return PolicySpec.model_validate({"name": "a", **fields})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    BYTES.save(folder)
    return folder


def test_a_message_is_its_role_its_content_and_an_end() -> None:
    text = BYTES.render(CHAT, add_generation_prompt=True)
    assert text == "<|system|>Be brief.<|end|><|user|>é<|end|><|assistant|><|end|><|assistant|>"
    assert BYTES.encode(text)[-6:] == [195, 169, 256, 259, 256, 259]
    assert BYTES.decode(BYTES.encode(text)) == "Be brief.é"
    assert BYTES.eos_ids == (256,)


def test_half_a_character_decodes_to_a_replacement() -> None:
    assert BYTES.decode([195, 256, 65]) == "\N{REPLACEMENT CHARACTER}A"


@pytest.mark.parametrize("message", [{"role": "tool", "content": "x"}, {"role": "user"}])
def test_messages_without_a_known_role_or_content_are_refused(message: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="a message needs"):
        BYTES.render([message], add_generation_prompt=True)


@given(
    st.lists(st.sampled_from([*SPECIALS, "<|", "|>", "end", "é", " ", "\n"]) | st.text(max_size=5))
)
def test_the_saved_byte_tokenizer_encodes_alike(saved: Path, parts: list[str]) -> None:
    text = "".join(parts).encode(errors="replace").decode()
    loaded = FileTokenizer(saved, "x")
    assert loaded.encode(text) == BYTES.encode(text)


@given(st.lists(st.integers(0, 260)))
def test_the_saved_byte_tokenizer_decodes_alike(saved: Path, ids: list[int]) -> None:
    assert FileTokenizer(saved, "x").decode(ids) == BYTES.decode(ids)


def test_the_saved_byte_tokenizer_renders_alike(saved: Path) -> None:
    loaded = FileTokenizer(saved, "x")
    for prompt in (True, False):
        assert loaded.render(CHAT, prompt) == BYTES.render(CHAT, prompt)
    with pytest.raises(InvalidRequestError, match="no token for the role tool"):
        loaded.render([{"role": "tool", "content": ""}], True)
    assert (loaded.eos_ids, loaded.pad_id, loaded.vocab_size) == ((256,), 260, 261)


def test_saving_a_loaded_tokenizer_copies_it(saved: Path, tmp_path: Path) -> None:
    FileTokenizer(saved, "x").save(tmp_path / "copy")
    assert FileTokenizer(tmp_path / "copy", "x").encode("hi<|end|>") == [104, 105, 256]


def test_a_policy_gets_its_own_its_models_or_the_byte_tokenizer(saved: Path) -> None:
    base = saved.parent
    for asked in (
        policy(model={"uri": RANDOM}),
        policy(model={"uri": "file://unused"}, tokenizer="bytes://"),
    ):
        assert isinstance(load_tokenizer(asked, base), BytesTokenizer)
    for asked in (
        policy(model={"uri": RANDOM}, tokenizer=f"file://{saved.name}"),
        policy(model={"uri": f"file://{saved.name}"}),
    ):
        assert isinstance(load_tokenizer(asked, base), FileTokenizer)
    with pytest.raises(InvalidJobError, match="no tokenizer to name"):
        load_tokenizer(policy(model={"uri": RANDOM}, tokenizer=RANDOM), base)


def test_every_eos_id_of_the_files_counts(saved: Path, tmp_path: Path) -> None:
    BYTES.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 256]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 10}))
    assert FileTokenizer(tmp_path, "x").eos_ids == (256, 257, 10)


def test_how_many_ids_a_model_samples_stands_in_its_own_config(tmp_path: Path) -> None:
    """Often more than its tokenizer has."""
    BYTES.save(tmp_path)
    own = policy(model={"uri": f"file://{tmp_path}"})
    other = policy(model={"uri": "file://x"}, tokenizer=f"file://{tmp_path}")
    made = policy(model={"uri": "random://llama?hidden=8&layers=1&heads=1"})
    for config, known in (
        ({"vocab_size": 300}, 300),
        ({"text_config": {"vocab_size": 400}}, 400),
        ({}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert known_vocabulary(own, load_tokenizer(own, tmp_path)) == known
        assert known_vocabulary(other, load_tokenizer(other, tmp_path)) is None
    assert known_vocabulary(made, load_tokenizer(made, tmp_path)) == BYTES.vocab_size


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("tokenizer.json", "no tokenizer.json"),
        ("chat_template.jinja", "no chat template"),
        ("tokenizer_config.json", "names no eos_token"),
    ],
)
def test_files_that_cannot_serve_are_refused(broken: str, words: str, tmp_path: Path) -> None:
    BYTES.save(tmp_path)
    (tmp_path / broken).unlink()
    with pytest.raises(InvalidJobError, match=words):
        FileTokenizer(tmp_path, "x")


def test_a_template_that_does_not_parse_is_refused(tmp_path: Path) -> None:
    BYTES.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for x in %}")
    with pytest.raises(InvalidJobError, match="not valid"):
        FileTokenizer(tmp_path, "x")


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    BYTES.save(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert FileTokenizer(tmp_path, "x").encode("abcd") == [97, 98, 99, 100]


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, flexmarl.models.tokenizer, flexmarl.rollout.engines.scripted;"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_was_cut_short_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes((saved / name).read_bytes()[:-9])
    with pytest.raises(InvalidJobError, match=f"{name}: damaged"):
        FileTokenizer(tmp_path, "file://x")
