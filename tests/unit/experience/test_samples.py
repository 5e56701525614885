from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.experience.groups import POLICIES, columns_of, request, samples_of, sequence
from tests.unit.experience.groups import message as message_of

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.checks import MAX_TOKEN_ID, check_groups
from flexmarl.experience.columns import (
    AGENT,
    END,
    EPISODE,
    OWN_REWARD,
    REASON,
    SPAN_START,
    SPANS,
    START,
    TOKENS,
    TURNS,
    VERSION,
)
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
    from_wire,
    leased_from_wire,
    samples_in,
    to_wire,
)
from flexmarl.experience.wire import read_group
from flexmarl.runtime.errors import InvalidRequestError, StalePolicyError

GROUP = GroupId(3, 7, 11)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """Turns of random lengths, some empty, between prompts of random lengths."""
    mask: list[int] = []
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        mask += [0] * draw(st.integers(0, 3))
        start, length = len(mask), draw(st.integers(0, 5))
        cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=2))})
        spans = itertools.pairwise(cuts)
        mask += [1] * length
        turns.append(
            TurnSpan(
                start,
                start + length,
                tuple(VersionSpan(draw(st.integers(0, 9)), *span) for span in spans),
                draw(st.sampled_from(["stop", "length", "abort"])),
                draw(st.floats(0, 4, width=32)),
                draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
                draw(st.booleans()),
            )
        )
    size = len(mask)
    probs = draw(
        st.lists(st.floats(-100, 0, width=32, allow_subnormal=False), min_size=size, max_size=size)
    )
    ids = draw(st.lists(st.integers(0, MAX_TOKEN_ID), min_size=size, max_size=size))
    episode = draw(st.integers(0, 9))
    return Sequence(
        id=GROUP.sequence_id(episode, "solver", 0),
        agent="solver",
        episode=episode,
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.uint8),
        logprobs=np.where(mask, np.array(probs, np.float32), np.float32(0)).astype(np.float32),
        turns=tuple(turns),
        reward=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    )


@given(st.lists(sequences(), max_size=3, unique_by=lambda each: each.id))
def test_what_goes_over_the_wire_comes_back_the_same(given: list[Sequence]) -> None:
    sent = PolicySamples("solver", 4, tuple(given))
    raw = to_wire(sent, GROUP)
    assert pb.PolicySamples.FromString(raw).SerializeToString(deterministic=True) == raw
    received = from_wire(raw, GROUP)
    assert to_wire(received, GROUP) == raw
    for one in (received, samples_in(columns_of(sent, GROUP))):
        same(one, sent)


def same(received: PolicySamples, sent: PolicySamples) -> None:
    assert (received.policy, received.version) == (sent.policy, sent.version)
    for one, other in zip(sent.sequences, received.sequences, strict=True):
        assert (one.id, one.agent, one.episode) == (other.id, other.agent, other.episode)
        assert (one.turns, one.reward) == (other.turns, other.reward)
        for name in ("token_ids", "loss_mask", "logprobs"):
            before, after = getattr(one, name), getattr(other, name)
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_arrays_are_little_endian_bytes() -> None:
    message = message_of(samples_of(GROUP)[0], GROUP)
    values = struct.unpack("<8i", message.token_ids)
    assert values[:4] == tuple(sequence(GROUP, 0, "solver").token_ids.tolist())
    assert values[4:] == tuple(sequence(GROUP, 1, "solver").token_ids.tolist())


Change = Callable[[pb.PolicySamples], None]
SEQUENCE, TURN, SPAN = ("sequences", 6), ("turns", 6), ("spans", 3)


def _set(table: tuple[str, int], *columns: tuple[int, int]) -> Change:
    """The second sequence's row, or that of its turn or span."""

    def change(message: pb.PolicySamples) -> None:
        name, width = table
        for column, value in columns:
            getattr(message, name)[width + column] = value

    return change


def _reward(name: str, value: float, *columns: tuple[int, int]) -> Change:
    def change(message: pb.PolicySamples) -> None:
        _set(TURN, *columns)(message)
        getattr(message, name)[1] = value

    return change


def _without_turn(message: pb.PolicySamples) -> None:
    _set(SEQUENCE, (TURNS, 0))(message)
    del message.turns[6:], message.temperatures[1:], message.turn_rewards[1:], message.spans[3:]


def _without_span(message: pb.PolicySamples) -> None:
    _set(TURN, (SPANS, 0))(message)
    del message.spans[3:]


def _cut(name: str, length: int) -> Change:
    def change(message: pb.PolicySamples) -> None:
        del getattr(message, name)[length:]

    return change


def _array(name: str, values: bytes) -> Change:
    """The second sequence's part of an array becomes `values`."""

    def change(message: pb.PolicySamples) -> None:
        whole = getattr(message, name)
        setattr(message, name, whole[: len(whole) // 2] + values)

    return change


def _swapped(message: pb.PolicySamples) -> None:
    ids = np.frombuffer(message.token_ids, "<u4").copy()
    ids[4:] = ids[4:].byteswap()
    message.token_ids = ids.tobytes()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


WRONG: dict[str, tuple[Change, str]] = {
    "log-prob nan": (
        _array("logprobs", floats(0, 0, -1, float("nan"))),
        "log-prob nan at position 3",
    ),
    "log-prob -inf": (
        _array("logprobs", floats(0, 0, -float("inf"), 0)),
        "log-prob -inf at position 2",
    ),
    "log-prob positive": (
        _array("logprobs", floats(0, 0, 0.5, 0)),
        "log-prob 0.5 at position 2",
    ),
    "log-prob on the prompt": (_array("logprobs", floats(-1, 0, -1, -1)), "outside of the mask -1"),
    "log-probs big-endian": (_array("logprobs", struct.pack(">4f", 0, 0, -0.5, -1.5)), "log-prob"),
    "token ids big-endian": (_swapped, "token id"),
    "token id negative": (
        _array("token_ids", struct.pack("<4i", 1, 2, -7, 3)),
        "token id -7 at position 2",
    ),
    "token ids garbage": (_array("token_ids", b"\xff\xfe\xfd\x7f" * 4), "token id"),
    "mask of something else": (
        _array("loss_mask", b"\0\2\1\1"),
        "mask is not 0 outside of its turns: 2 at position 1",
    ),
    "mask beyond the turn": (_array("loss_mask", b"\0\1\1\1"), "mask is not 0 outside"),
    "mask short of the turn": (_array("loss_mask", b"\0\0\0\1"), "mask is not 1 throughout"),
    "turn beyond the end": (_set(TURN, (END, 9)), "turn [2, 9)"),
    "turn backwards": (_set(TURN, (START, 4), (END, 2)), "turn [4, 2)"),
    "finish reason": (_set(TURN, (REASON, 3)), "finish reason 3 is none of"),
    "temperature": (_reward("temperatures", float("nan")), "temperature is nan"),
    "turn's reward": (
        _reward("turn_rewards", float("inf"), (OWN_REWARD, 1)),
        "[2, 4) is inf",
    ),
    "reward": (_reward("rewards", float("nan")), "reward is nan"),
    "no turn": (_without_turn, "has no turn"),
    "no versions": (_without_span, "cover 0 of 2"),
    "version gap": (_set(SPAN, (SPAN_START, 1)), "version span [1, 2) after 0"),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_broken_sequence_is_named(why: str) -> None:
    change, words = WRONG[why]
    message = message_of(samples_of(GROUP)[0], GROUP)
    change(message)
    with pytest.raises(InvalidRequestError) as caught:
        from_wire(message.SerializeToString(), GROUP)
    assert "sequence 3/7/11/1/solver/0: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("why", WRONG)
def test_a_broken_sequence_is_named_wherever_it_stands(why: str) -> None:
    """The store looks at the groups of a request together."""
    change, words = WRONG[why]
    before, broken, after = (request(GroupId(3, 7, index)) for index in (10, 11, 12))
    change(broken.policies[1])
    groups = [read_group(each.SerializeToString()) for each in (before, broken, after)]
    with pytest.raises(InvalidRequestError) as caught:
        check_groups(groups, frozenset(POLICIES), 0)
    assert "sequence 3/7/11/1/verifier/0: " in str(caught.value)
    assert words in str(caught.value)
    check_groups([groups[0], groups[2]], frozenset(POLICIES), 0)


@pytest.mark.parametrize(("change", "words"), [
    (_array("loss_mask", b"\0\1\1"), "7 mask values"),
    (_array("token_ids", b"\1" * 15), "7.75 token ids"),
    (_array("logprobs", b""), "4 log-probs"),
    (_set(SEQUENCE, (TOKENS, 5)), "for 9 tokens of 2 sequences"),
    (_set(SEQUENCE, (TOKENS, 1 << 31)), "for 2147483652 tokens"),
    (lambda message: message.ClearField("sequences"), "for 0 tokens of 0 sequences"),
])  # fmt: skip
def test_arrays_of_another_length_are_refused(change: Change, words: str) -> None:
    message = message_of(samples_of(GROUP)[0], GROUP)
    change(message)
    with pytest.raises(InvalidRequestError, match="samples of 'solver'") as caught:
        from_wire(message.SerializeToString(), GROUP)
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [
    _cut("rewards", 1), _cut("temperatures", 1), _cut("turn_rewards", 0), _cut("turns", 6),
    _cut("spans", 3), _cut("agents", 0), _set(SEQUENCE, (TURNS, 2)), _set(TURN, (SPANS, 0)),
    _set(SEQUENCE, (AGENT, 1)),
])  # fmt: skip
def test_tables_that_do_not_fit_together_are_refused(change: Change) -> None:
    message = message_of(samples_of(GROUP)[0], GROUP)
    change(message)
    with pytest.raises(InvalidRequestError, match=r"samples of 'solver': its tables of 2 seq"):
        from_wire(message.SerializeToString(), GROUP)


def test_one_id_twice_is_refused() -> None:
    message = message_of(samples_of(GROUP)[0], GROUP)
    _set(SEQUENCE, (EPISODE, 0))(message)
    with pytest.raises(InvalidRequestError, match=r"3/7/11/0/solver/0: appears twice"):
        from_wire(message.SerializeToString(), GROUP)


@pytest.mark.parametrize(("arrays", "words"), [
    ({"token_ids": np.zeros(4, np.int64)}, "not int64"),
    ({"loss_mask": np.zeros((2, 2), np.uint8)}, "one dimension"),
    ({"logprobs": np.zeros(3, np.float32)}, "4 token ids, 4 mask values and 3 log-probs"),
])  # fmt: skip
def test_arrays_of_another_kind_are_refused(arrays: dict[str, Any], words: str) -> None:
    wrong = replace(sequence(GROUP, 0, "solver"), **arrays)
    with pytest.raises(InvalidRequestError, match=rf"3/7/11/0/solver/0: .*{words}"):
        to_wire(PolicySamples("solver", 7, (wrong,)), GROUP)


def test_arrays_with_gaps_between_their_values_are_sent_without_them() -> None:
    good = sequence(GROUP, 0, "solver")
    spread = replace(good, token_ids=np.repeat(good.token_ids, 2)[::2])
    assert to_wire(PolicySamples("solver", 7, (spread,)), GROUP) == to_wire(
        PolicySamples("solver", 7, (good,)), GROUP
    )


def test_what_was_leased_is_a_group() -> None:
    samples = samples_of(GROUP)[1]
    message = pb.LeasedGroup(
        id=pb.GroupId(incarnation=3, step=7, index=11),
        task_id="t",
        samples=message_of(samples, GROUP),
    )
    leased = leased_from_wire(read_group(message.SerializeToString()))
    assert (leased.id, leased.task_id) == (GROUP, "t")
    assert message_of(leased.samples, GROUP) == message.samples


def check(message: pb.OfferedGroup, max_staleness: int = 0) -> None:
    group = read_group(message.SerializeToString())
    check_groups([group], frozenset(POLICIES), max_staleness)


def test_a_group_carries_every_policy_once() -> None:
    check(request(GROUP))
    check(request(GROUP, silent=frozenset(POLICIES)))
    missing, twice, unknown = request(GROUP), request(GROUP), request(GROUP)
    del missing.policies[0]
    twice.policies[0].CopyFrom(twice.policies[1])
    unknown.policies[0].policy = "judge"
    for message in (missing, twice, unknown):
        with pytest.raises(InvalidRequestError, match="group 3/7/11 carries"):
            check(message)


@pytest.mark.parametrize(("fields", "words"), [
    ({"id": "3/7/12/0/solver/0"}, "3/7/12/0/solver/0: is not 3/7/11/EPISODE/AGENT/SEQ"),
    ({"id": "3/7/11/0/solver/x"}, "3/7/11/0/solver/x: is not"),
    ({"id": "3/7/11/0/solver/01"}, "3/7/11/0/solver/01: is not"),
    ({"episode": 1}, "3/7/11/0/solver/0: is not"),
    ({"turns": (TurnSpan(2, 4, (VersionSpan(7, 0, 2),), "eos", 1.0),)}, "reason 'eos' is none"),
])  # fmt: skip
def test_what_columns_cannot_hold_is_refused(fields: dict[str, Any], words: str) -> None:
    wrong = replace(sequence(GROUP, 0, "solver"), **fields)
    with pytest.raises(InvalidRequestError, match=words):
        to_wire(PolicySamples("solver", 7, (wrong,)), GROUP)


@pytest.mark.parametrize(("version", "staleness", "fits"), [
    (7, 0, True), (6, 0, False), (8, 0, False), (6, 1, True), (5, 1, False), (8, 1, False),
])  # fmt: skip
def test_versions_are_those_that_the_step_may_train_on(
    version: int, staleness: int, fits: bool
) -> None:
    routed, span = request(GROUP), request(GROUP)
    routed.policies[1].version = version
    _set(SPAN, (VERSION, version))(span.policies[1])
    for message in (routed, span):
        if fits:
            check(message, staleness)
        else:
            with pytest.raises(StalePolicyError, match=f"version {version} of 'verifier'"):
                check(message, staleness)


def test_no_incarnation_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="take one first"):
        check(request(GroupId(0, 7, 11)))
