from __future__ import annotations

import pytest
from tests.unit.experience.groups import POLICIES, request, sent

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.entries import (
    FORM,
    KEPT_BYTES,
    Entry,
    Name,
    UndecodableError,
    check,
    encode,
    remains,
)
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.wire import read_group
from flexmarl.runtime.errors import InvalidJobError

GROUP = GroupId(1, 2, 3)


def entry(message: pb.OfferedGroup, policy: int = 0) -> Entry:
    group = read_group(message.SerializeToString())
    return encode(group, group.policies[policy])


@pytest.mark.parametrize("silent", [frozenset[str](), frozenset(POLICIES)])
def test_an_entry_holds_what_one_policy_learns_and_nothing_of_others(
    silent: frozenset[str],
) -> None:
    message = request(GROUP, silent=silent)
    for number, samples in enumerate(message.policies):
        one = entry(message, number)
        assert pb.LeasedGroup.FromString(bytes(one.data)) == pb.LeasedGroup(
            id=message.id, task_id=message.task_id, samples=samples
        )
        check({b"meta": one.meta, b"status": one.status}, bytes(one.data), 2, 3)


def test_the_group_of_a_single_policy_is_stored_as_it_came() -> None:
    message = request(GROUP)
    del message.policies[1]
    raw = message.SerializeToString()
    group = read_group(raw)
    assert encode(group, group.policies[0]).data is raw


@pytest.mark.parametrize(("name", "value", "words"), [
    ("meta", b"1 2 4 2 t", "checksum"),
    ("data", b"rubbish", "it has 7 bytes, not"),
    ("status", FORM + b" 7 0", "bytes, not 7"),
    ("status", FORM + b" \xff", "bytes, not"),
    ("status", b"1979 0123456789abcdef", "another version of FlexMARL wrote it"),
    ("meta", None, "no field meta"),
    ("status", None, "no field status"),
])  # fmt: skip
def test_what_was_changed_is_noticed(name: str, value: bytes | None, words: str) -> None:
    one = entry(request(GROUP))
    given = {"meta": one.meta, "status": one.status, "data": bytes(one.data), name: value}
    fields = {key.encode(): value for key, value in given.items() if value is not None}
    data = fields.pop(b"data")
    with pytest.raises(UndecodableError, match=words):
        check(fields, data, 2, 3)


@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_single_bit_is_noticed(place: int) -> None:
    one = entry(request(GROUP))
    data = bytearray(one.data)
    data[place] ^= 1
    with pytest.raises(UndecodableError, match="checksum"):
        check({b"meta": one.meta, b"status": one.status}, bytes(data), 2, 3)


@pytest.mark.parametrize(("step", "index"), [(2, 4), (1, 3)])
def test_another_group_than_the_one_asked_for_is_noticed(step: int, index: int) -> None:
    one = entry(request(GROUP))
    with pytest.raises(UndecodableError, match="it is step 2, index 3"):
        check({b"meta": one.meta, b"status": one.status}, bytes(one.data), step, index)


def test_remains_are_cut() -> None:
    one = entry(request(GROUP, tokens=200_000))
    kept = remains({b"meta": one.meta}, bytes(one.data))
    assert kept[:3] == [b"meta", one.meta, b"data"]
    assert len(kept[3]) == KEPT_BYTES


def test_names_sort_as_the_stream_does() -> None:
    name = Name.parse(b"00000001764288000123-00000000000000000007:1979:42")
    assert (name.stream_id, name.size, name.index) == ("1764288000123-7", 1979, 42)


def test_every_key_of_a_job_has_its_hash_tag() -> None:
    keys = Keys("default/job/abc")
    for key in (
        keys.incarnation, keys.state, keys.closed, keys.steps, keys.arrivals, keys.epoch("p"),
        keys.stream("p"), keys.dead("p"), keys.entries("p", 1), keys.stored(1),
        keys.data("p", "1-1"), keys.staged("p", "a"),
    ):  # fmt: skip
        assert key.startswith("{default/job/abc}:")


@pytest.mark.parametrize("uid", ["", "a{b", "a}b"])
def test_a_uid_that_would_move_the_hash_tag_is_refused(uid: str) -> None:
    with pytest.raises(InvalidJobError):
        Keys(uid)


def test_what_was_sent_is_a_group_to_the_protobuf_library_too() -> None:
    assert pb.OfferedGroup.FromString(sent(GROUP)) == request(GROUP)
