"""Our own reading and writing of large messages, held against the protobuf library's."""

from __future__ import annotations

from dataclasses import fields

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.experience.groups import request, sent

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.columns import Tables
from flexmarl.experience.samples import GroupId
from flexmarl.experience.wire import (
    append_message,
    group_message,
    lease_message,
    read_append,
    read_group,
    read_lease,
)

GROUP = GroupId(1, 2, 3)
TABLES = [field.name for field in fields(Tables)]


def samples(draw: st.DrawFn) -> pb.PolicySamples:
    count = draw(st.integers(0, 3))
    return pb.PolicySamples(
        policy=draw(st.text(max_size=3)),
        version=draw(st.integers(0, 2**64 - 1)),
        agents=[draw(st.text(max_size=200)) for _ in range(count)],
        sequences=[draw(st.integers(0, 2**32 - 1)) for _ in range(6 * count)],
        rewards=[draw(st.floats(allow_nan=False)) for _ in range(count)],
        turns=range(6 * count),
        temperatures=[0.5] * count,
        turn_rewards=[draw(st.floats(allow_nan=False)) for _ in range(count)],
        spans=[draw(st.integers(0, 2**64 - 1)) for _ in range(3 * count)],
        token_ids=draw(st.binary(max_size=300)),
        loss_mask=draw(st.binary(max_size=3)),
        logprobs=draw(st.binary(max_size=20)),
    )


@st.composite
def groups(draw: st.DrawFn) -> pb.OfferedGroup:
    return pb.OfferedGroup(  # an identity that is absent is written as an empty one
        id=pb.GroupId(incarnation=draw(st.integers(0, 2**64 - 1)), step=draw(st.integers(0, 9))),
        task_id=draw(st.text(max_size=5)),
        policies=[samples(draw) for _ in range(draw(st.integers(0, 3)))],
        note=draw(st.binary(max_size=9)),
    )


@given(groups())
def test_a_group_is_read_as_the_library_reads_it(message: pb.OfferedGroup) -> None:
    raw = message.SerializeToString()
    group = read_group(raw)
    assert (group.id, group.task_id, group.note) == (message.id, message.task_id, message.note)
    assert len(group.policies) == len(message.policies)
    for own, policy in zip(group.policies, message.policies, strict=True):
        assert pb.PolicySamples.FromString(bytes(own.raw)) == policy
        assert own.arrays == (policy.token_ids, policy.loss_mask, policy.logprobs)
        for name in TABLES:
            assert getattr(own.tables, name).reshape(-1).tolist() == getattr(policy, name)
        assert own.head == pb.PolicySamples(
            policy=policy.policy, version=policy.version, agents=policy.agents
        )
    arrays = [[p.raw] for p in group.policies]
    written = b"".join(group_message(group.id, group.task_id, arrays, group.note))
    assert pb.OfferedGroup.FromString(written) == pb.OfferedGroup.FromString(raw)


@given(st.integers(0, 3), st.text(max_size=50), st.sampled_from([0.0, 0.25]))
def test_a_lease_is_what_the_library_would_write(count: int, cursor: str, waited: float) -> None:
    group = pb.LeasedGroup(task_id="t", samples=pb.PolicySamples(policy="p", token_ids=b"1234"))
    stored = group.SerializeToString()
    played, clock = [0.5 * number for number in range(count)], pb.Clock(id=7, received=1.5)
    beside = pb.LeaseResponse(cursor=cursor, waited=waited, played=played, clock=clock)
    message = lease_message([stored] * count, beside)
    wanted = pb.LeaseResponse(groups=[group] * count)
    wanted.MergeFrom(beside)
    assert message == wanted.SerializeToString()
    found, rest = read_lease(message)
    assert rest == beside
    assert [bytes(each.raw) for each in found] == [stored] * count


@given(st.lists(st.binary(max_size=300), max_size=3), st.sampled_from([(), (0.5, 0.25)]))
def test_a_request_to_append_is_what_the_library_would_write(
    tasks: list[bytes], played: tuple[float, ...]
) -> None:
    offered = [pb.OfferedGroup(note=task).SerializeToString() for task in tasks]
    message = append_message([[raw] for raw in offered], played, 7)
    beside = pb.AppendGroupsRequest(played=played, clock=7)
    wanted = pb.AppendGroupsRequest(groups=map(pb.OfferedGroup.FromString, offered))
    wanted.MergeFrom(beside)
    assert message == wanted.SerializeToString()
    groups, rest = read_append(message)
    assert ([bytes(each) for each in groups], rest) == (offered, beside)


@given(st.data())
def test_a_group_that_was_cut_anywhere_is_no_group_or_another(data: st.DataObject) -> None:
    raw = sent(GROUP)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        group = read_group(cut)
    except DecodeError:
        return
    assert group.policies != read_group(raw).policies


@given(st.binary(max_size=60))
@example(b"\x0b\x0c")
@example(b"\xff" * 11)
@example(b"\x1a\x0a\x22\x01a\x22\x01b")
@example(b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_what_the_library_cannot_read_we_cannot_either(raw: bytes) -> None:
    """And where both can, they read the same; fields that nobody knows stay where they are."""
    try:
        group = read_group(raw)
    except DecodeError:
        return
    message = pb.OfferedGroup.FromString(raw)
    assert (group.id, group.task_id) == (message.id, message.task_id)
    assert [own.arrays for own in group.policies] == [
        (own.token_ids, own.loss_mask, own.logprobs) for own in message.policies
    ]


def test_an_array_that_comes_twice_is_refused() -> None:
    """Readers of protobuf take the last one: what was checked must be what is read."""
    twice = request(GROUP).policies[0].SerializeToString() * 2
    with pytest.raises(DecodeError, match="twice"):
        read_group(b"".join(group_message(pb.GroupId(), "t", [[twice]])))


@pytest.mark.parametrize(("raw", "words"), [
    (b"\x3a\x05abcde", "5 bytes are no sequences"),
    (b"\x3a\x04abcd", "4 bytes are no sequences"),
    (b"\x42\x07abcdefg", "7 bytes are no rewards"),
    (b"\x62\x08abcdefgh", "8 bytes are no spans"),
    (b"\x3dabcd", "not packed"),
])  # fmt: skip
def test_a_table_that_is_none_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        read_group(b"".join(group_message(pb.GroupId(), "t", [[raw]])))
