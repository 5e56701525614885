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
from tests.unit.experience.groups import POLICIES, request, samples_of, sequence
from tests.unit.experience.groups import message as message_of

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.checks import MAX_TOKEN_ID, check_group
from flexmarl.experience.samples import (
    GroupId,
    PolicySamples,
    Sequence,
    TurnSpan,
    VersionSpan,
    from_wire,
    leased_from_wire,
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
    raw = to_wire(sent)
    assert pb.PolicySamples.FromString(raw).SerializeToString(deterministic=True) == raw
    received = from_wire(raw)
    assert to_wire(received) == raw
    assert (received.policy, received.version) == ("solver", 4)
    for one, other in zip(sent.sequences, received.sequences, strict=True):
        assert (one.id, one.agent, one.episode) == (other.id, other.agent, other.episode)
        assert (one.turns, one.reward) == (other.turns, other.reward)
        for name in ("token_ids", "loss_mask", "logprobs"):
            before, after = getattr(one, name), getattr(other, name)
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_arrays_are_little_endian_bytes() -> None:
    message = message_of(samples_of(GROUP)[0])
    values = struct.unpack("<8i", message.token_ids)
    assert values[:4] == tuple(sequence(GROUP, 0, "solver").token_ids.tolist())
    assert values[4:] == tuple(sequence(GROUP, 1, "solver").token_ids.tolist())


def _set(**fields: Any) -> Callable[[pb.PolicySamples], None]:
    def change(message: pb.PolicySamples) -> None:
        for name, value in fields.items():
            setattr(message.sequences[1], name, value)

    return change


def _turn(**fields: Any) -> Callable[[pb.PolicySamples], None]:
    def change(message: pb.PolicySamples) -> None:
        for name, value in fields.items():
            setattr(message.sequences[1].turns[0], name, value)

    return change


def _array(name: str, values: bytes) -> Callable[[pb.PolicySamples], None]:
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


def _version(message: pb.PolicySamples) -> None:
    message.sequences[1].turns[0].versions[0].start = 1


WRONG: dict[str, tuple[Callable[[pb.PolicySamples], None], str]] = {
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
    "turn beyond the end": (_turn(end=9), "turn [2, 9)"),
    "turn backwards": (_turn(start=4, end=2), "turn [4, 2)"),
    "finish reason": (_turn(finish_reason="eos"), "'eos'"),
    "temperature": (_turn(temperature=float("nan")), "temperature is nan"),
    "turn's reward": (_turn(reward=float("inf")), "[2, 4) is inf"),
    "reward": (_set(reward=float("nan")), "reward is nan"),
    "no turn": (lambda message: message.sequences[1].ClearField("turns"), "has no turn"),
    "no versions": (
        lambda message: message.sequences[1].turns[0].ClearField("versions"),
        "cover 0 of 2",
    ),
    "version gap": (_version, "version span [1, 2) after 0"),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_broken_sequence_is_named(why: str) -> None:
    change, words = WRONG[why]
    message = message_of(samples_of(GROUP)[0])
    change(message)
    with pytest.raises(InvalidRequestError) as caught:
        from_wire(message.SerializeToString())
    assert message.sequences[1].id in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(("change", "words"), [
    (_array("loss_mask", b"\0\1\1"), "7 mask values"),
    (_array("token_ids", b"\1" * 15), "7.75 token ids"),
    (_array("logprobs", b""), "4 log-probs"),
    (_set(tokens=5), "for 9 tokens of 2 sequences"),
    (_set(tokens=1 << 31), "for 2147483652 tokens"),
    (lambda message: message.ClearField("sequences"), "for 0 tokens of 0 sequences"),
])  # fmt: skip
def test_arrays_of_another_length_are_refused(
    change: Callable[[pb.PolicySamples], None], words: str
) -> None:
    message = message_of(samples_of(GROUP)[0])
    change(message)
    with pytest.raises(InvalidRequestError, match="samples of 'solver'") as caught:
        from_wire(message.SerializeToString())
    assert words in str(caught.value)


def test_one_id_twice_is_refused() -> None:
    message = message_of(samples_of(GROUP)[0])
    message.sequences[1].id = message.sequences[0].id
    with pytest.raises(InvalidRequestError, match=r"3/7/11/0/solver/0: appears twice"):
        from_wire(message.SerializeToString())


@pytest.mark.parametrize(("arrays", "words"), [
    ({"token_ids": np.zeros(4, np.int64)}, "not int64"),
    ({"loss_mask": np.zeros((2, 2), np.uint8)}, "one dimension"),
    ({"logprobs": np.zeros(3, np.float32)}, "4 token ids, 4 mask values and 3 log-probs"),
])  # fmt: skip
def test_arrays_of_another_kind_are_refused(arrays: dict[str, Any], words: str) -> None:
    wrong = replace(sequence(GROUP, 0, "solver"), **arrays)
    with pytest.raises(InvalidRequestError, match=rf"3/7/11/0/solver/0: .*{words}"):
        to_wire(PolicySamples("solver", 7, (wrong,)))


def test_arrays_with_gaps_between_their_values_are_sent_without_them() -> None:
    good = sequence(GROUP, 0, "solver")
    spread = replace(good, token_ids=np.repeat(good.token_ids, 2)[::2])
    assert to_wire(PolicySamples("solver", 7, (spread,))) == to_wire(
        PolicySamples("solver", 7, (good,))
    )


def test_what_was_leased_is_a_group() -> None:
    samples = samples_of(GROUP)[1]
    message = pb.LeasedGroup(
        id=pb.GroupId(incarnation=3, step=7, index=11), task_id="t", samples=message_of(samples)
    )
    leased = leased_from_wire(read_group(message.SerializeToString()))
    assert (leased.id, leased.task_id) == (GROUP, "t")
    assert message_of(leased.samples) == message.samples


def check(message: pb.OfferedGroup, max_staleness: int = 0) -> None:
    group = read_group(message.SerializeToString())
    check_group(group, frozenset(POLICIES), max_staleness)


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


def test_a_sequence_of_another_group_is_refused() -> None:
    message = request(GROUP)
    message.policies[0].sequences[0].id = "3/7/12/0/solver/0"
    with pytest.raises(InvalidRequestError, match="3/7/12/0/solver/0"):
        check(message)


@pytest.mark.parametrize(("version", "staleness", "fits"), [
    (7, 0, True), (6, 0, False), (8, 0, False), (6, 1, True), (5, 1, False), (8, 1, False),
])  # fmt: skip
def test_versions_are_those_that_the_step_may_train_on(
    version: int, staleness: int, fits: bool
) -> None:
    routed, span = request(GROUP), request(GROUP)
    routed.policies[1].version = version
    span.policies[1].sequences[1].turns[0].versions[0].version = version
    for message in (routed, span):
        if fits:
            check(message, staleness)
        else:
            with pytest.raises(StalePolicyError, match=f"version {version} of 'verifier'"):
                check(message, staleness)


def test_no_incarnation_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="take one first"):
        check(request(GroupId(0, 7, 11)))
