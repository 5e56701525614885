from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.models.bytes_tokenizer import END, BytesTokenizer
from flexmarl.models.tokenizer import FileTokenizer
from flexmarl.rollout.conversation import Conversation, Generated, Turn, TurnInfo
from flexmarl.rollout.prompts import History, PromptEncoder, Tokens, as_history

INFO = TurnInfo(0, "solver", "solver", 1.0, 64)
ASK: History = (("system", "s"), ("user", "hi"))


class Speaker:
    """Plays turns of one conversation with given replies."""

    def __init__(self, tokens: Tokens, make: Callable[..., Generated]) -> None:
        self.tokens, self.make = tokens, make
        self.encoder = PromptEncoder(tokens)
        self.conversation = Conversation(self.encoder)
        self.forks = 0

    def say(
        self, history: History, ids: list[int], finish_reason: str = "stop"
    ) -> tuple[Turn, list[int]]:
        """The turn and the prompt that its engine saw."""
        opening = self.conversation.open(history)
        self.forks += opening.forked
        prompt = opening.prompt_ids().tolist()
        made = self.make(self.tokens, ids, finish_reason)
        return self.conversation.close(opening, made, INFO), prompt


def then(turn: Turn, text: str, reply: str | None = None) -> History:
    return (
        *turn.history,
        ("assistant", turn.text if reply is None else reply),
        ("user", text),
    )


def trained(turns: list[Turn]) -> list[int]:
    """The ids that the masks of all sequences cover, turn by turn."""
    ids: list[int] = []
    for sequence in {id(turn.sequence): turn.sequence for turn in turns}.values():
        assert sequence is not None
        whole = np.concatenate(sequence.pieces)
        assert len(whole) == sequence.length
        for turn in sequence.turns:
            ids += whole[turn.start : turn.end].tolist()
    return ids


@pytest.fixture
def bytes_speaker(make_generated: Callable[..., Generated]) -> Speaker:
    return Speaker(BytesTokenizer(), make_generated)


def test_text_is_the_system_prompt_and_one_user_message() -> None:
    assert as_history("hi", "s") == ASK
    assert as_history("hi", None) == (("user", "hi"),)


def test_a_history_with_its_own_system_prompt_keeps_it() -> None:
    given_messages = [{"role": "system", "content": "mine"}, {"role": "user", "content": "hi"}]
    assert as_history(given_messages, "s")[0] == ("system", "mine")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ([{"role": "tool", "content": "x"}], "'tool'; known are system"),
        ([{"role": "user", "content": None}], "content must be text, not NoneType"),
        ([{"role": "user", "content": "x", "name": "bob"}], "has \\['name'\\]"),
        ([{"content": "x"}], "role is None"),
    ],
)
def test_a_wrong_message_is_named(messages: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_history(messages, "s")


def test_the_next_prompt_is_the_earlier_ids_and_the_new_text(bytes_speaker: Speaker) -> None:
    sampled = [*b"four", END]
    first, prompt = bytes_speaker.say(ASK, sampled)
    _, second = bytes_speaker.say(then(first, "sure?"), [*b"yes", END])
    new = bytes_speaker.tokens.encode("<|user|>sure?<|end|><|assistant|>")
    assert second == [*prompt, *sampled, *new]
    assert bytes_speaker.forks == 0


def test_an_end_that_was_not_sampled_comes_from_the_template(bytes_speaker: Speaker) -> None:
    first, prompt = bytes_speaker.say(ASK, [*b"fo"], "length")
    _, second = bytes_speaker.say(then(first, "?"), [END])
    assert second == [*prompt, *b"fo", END, *bytes_speaker.tokens.encode("<|user|>?<|end|>"), 259]


def test_bytes_that_are_no_text_and_markers_keep_their_ids(bytes_speaker: Speaker) -> None:
    sampled = [0xE2, 0x82, 260, 257, *b"x", END]  # half a euro sign, <|pad|>, <|system|>
    first, prompt = bytes_speaker.say(ASK, sampled)
    _, second = bytes_speaker.say(then(first, "?"), [END])
    assert second[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert bytes_speaker.forks == 0


def test_a_tokenisation_that_encoding_would_not_choose_is_kept(
    im_tokenizer: Callable[..., FileTokenizer], make_generated: Callable[..., Generated]
) -> None:
    speaker = Speaker(im_tokenizer(), make_generated)
    assert speaker.tokens.encode("ab") == [256]
    sampled = [*b"ab", 258]
    first, prompt = speaker.say(ASK, sampled)
    assert first.text == "ab"
    second, ids = speaker.say(then(first, "?"), [256, 258])
    assert ids[len(prompt) :][:3] == sampled
    assert trained([first, second]) == [*sampled, 256, 258]
    assert speaker.forks == 0


def test_a_template_that_strips_thoughts_forks(
    im_tokenizer: Callable[..., FileTokenizer], make_generated: Callable[..., Generated]
) -> None:
    speaker = Speaker(im_tokenizer(), make_generated)
    thought = [*speaker.tokens.encode("<think>\nhm\n</think>\n\nab"), 258]
    first, _ = speaker.say(ASK, thought)
    history = then(first, "sure?")
    second, prompt = speaker.say(history, [*b"yes", 258])
    assert speaker.forks == 1
    assert second.sequence is not first.sequence
    assert prompt == speaker.encoder.encode(speaker.encoder.render(history)).tolist()
    assert trained([first, second]) == [*thought, *b"yes", 258]


def test_the_missing_newline_after_a_turn_is_added(
    im_tokenizer: Callable[..., FileTokenizer], make_generated: Callable[..., Generated]
) -> None:
    speaker = Speaker(im_tokenizer(), make_generated)
    first, prompt = speaker.say(ASK, [*b"x", 258])
    history = then(first, "?")
    _, second = speaker.say(history, [258])
    assert second[len(prompt) :][:3] == [*b"x", 258, *b"\n"][:3]
    assert second == speaker.tokens.encode(speaker.encoder.render(history))


def test_a_turn_that_another_end_token_ended_forks(
    im_tokenizer: Callable[..., FileTokenizer], make_generated: Callable[..., Generated]
) -> None:
    speaker = Speaker(im_tokenizer(), make_generated)
    first, _ = speaker.say(ASK, [*b"x", 259])  # <|endoftext|>, where the template says <|im_end|>
    _, second = speaker.say(then(first, "?"), [258])
    assert 259 not in second
    assert speaker.forks == 1


def test_a_reply_that_the_program_changed_forks(bytes_speaker: Speaker) -> None:
    first, _ = bytes_speaker.say(ASK, [*b" four ", END])
    second, prompt = bytes_speaker.say(then(first, "?", "four"), [END])
    assert bytes_speaker.forks == 1
    assert second.sequence is not first.sequence
    assert prompt == bytes_speaker.tokens.encode(second.prompt_text)


def test_a_history_cut_at_the_front_forks(bytes_speaker: Speaker) -> None:
    first, _ = bytes_speaker.say(ASK, [*b"four", END])
    bytes_speaker.say((("assistant", first.text), ("user", "?")), [END])
    assert bytes_speaker.forks == 1


def test_independent_calls_are_sequences_of_their_own_and_no_forks(bytes_speaker: Speaker) -> None:
    shots: History = (("user", "1"), ("assistant", "one"), ("user", "2"))
    turns = [bytes_speaker.say(history, [*b"a", END])[0] for history in (ASK, ASK, shots, shots)]
    assert len({id(turn.sequence) for turn in turns}) == 4
    assert bytes_speaker.forks == 0


def test_a_second_continuation_of_one_turn_trains_nothing_twice(bytes_speaker: Speaker) -> None:
    first, prompt = bytes_speaker.say(ASK, [*b"a", END])
    left = bytes_speaker.conversation.open(then(first, "l"))  # in flight
    right, ids = bytes_speaker.say(then(first, "r"), [*b"R", END])
    done = bytes_speaker.conversation.close(
        left, bytes_speaker.make(bytes_speaker.tokens, [*b"L", END]), INFO
    )
    assert done.sequence is first.sequence
    assert right.sequence is not first.sequence
    assert ids[: len(prompt) + 2] == [*prompt, *b"a", END]
    assert trained([first, done, right]) == [*b"a", END, *b"L", END, *b"R", END]
    assert bytes_speaker.forks == 0


def test_a_continuation_that_failed_leaves_the_sequence_free(bytes_speaker: Speaker) -> None:
    first, _ = bytes_speaker.say(ASK, [*b"a", END])
    bytes_speaker.conversation.open(then(first, "?")).release()
    again, _ = bytes_speaker.say(then(first, "?"), [END])
    assert again.sequence is first.sequence


def test_first_prompts_are_kept_within_a_bound() -> None:
    encoder = PromptEncoder(BytesTokenizer(), kept=2)
    kept = encoder.fresh(ASK)[1]
    assert encoder.fresh(ASK)[1] is kept
    encoder.fresh((("user", "1"),))
    encoder.fresh((("user", "2"),))
    assert encoder.fresh(ASK)[1] is not kept


CHOICES = st.lists(
    st.tuples(
        st.integers(0, 5),  # which earlier turn to go on from; 0: start afresh
        st.lists(st.integers(0, 260).filter(lambda token: token != END), max_size=4),
        st.booleans(),  # whether the end is sampled
        st.booleans(),  # whether the program changes the reply
    ),
    max_size=8,
)


@settings(deadline=None)
@given(CHOICES)
def test_whatever_the_program_does_each_sampled_token_is_trained_once(
    choices: list[tuple[int, list[int], bool, bool]],
) -> None:
    tokens = BytesTokenizer()
    speaker = Speaker(tokens, _generated)
    turns: list[Turn] = []
    sampled: list[int] = []
    for place, ids, ends, changed in choices:
        history = ASK
        if place and place <= len(turns):
            earlier = turns[place - 1]
            history = then(earlier, f"{len(turns)}", earlier.text + "!" if changed else None)
        reply = [*ids, END] if ends else [*ids, 65]
        turn, prompt = speaker.say(history, reply, "stop" if ends else "length")
        assert tokens.decode(prompt) == tokens.decode(tokens.encode(turn.prompt_text))
        assert turn.text == tokens.decode(reply)
        turns.append(turn)
        sampled += reply
    assert sorted(trained(turns)) == sorted(sampled)


def _generated(tokens: Tokens, ids: list[int], finish_reason: str = "stop") -> Generated:
    array = np.asarray(ids, dtype=np.int32)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    return Generated(tokens.decode(ids), array, logprobs, finish_reason, (), 0, 0, len(ids))
