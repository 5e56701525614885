from __future__ import annotations

import pytest
from tests.unit.experience.groups import request

from flexmarl.experience.entries import (
    CHUNK_BYTES,
    Name,
    UndecodableError,
    decode,
    encode,
    remains,
)
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.runtime.errors import InvalidJobError

GROUP = GroupId(1, 2, 3)


def entry(tokens: int = 4, episodes: int = 2) -> dict[bytes, bytes]:
    message = request(GROUP, tokens=tokens, episodes=episodes)
    _, fields = encode(message.id, "a task, with spaces", message.policies[0])
    return dict(zip(fields[::2], fields[1::2], strict=True))


def test_an_entry_reads_back() -> None:
    group = decode(entry())
    assert group.id == request(GROUP).id
    assert group.task_id == "a task, with spaces"
    assert group.samples == request(GROUP).policies[0]


def test_large_payloads_are_cut_into_chunks() -> None:
    fields = entry(tokens=200_000)
    chunks = [len(value) for name, value in fields.items() if name.startswith(b"data:")]
    assert chunks == [CHUNK_BYTES] * 3 + [chunks[-1]]
    assert 0 < chunks[-1] <= CHUNK_BYTES
    assert decode(fields).samples == request(GROUP, tokens=200_000).policies[0]


def test_an_empty_marker_reads_back() -> None:
    message = request(GROUP, silent=frozenset({"solver"}))
    _, fields = encode(message.id, "t", message.policies[0])
    assert not decode(dict(zip(fields[::2], fields[1::2], strict=True))).samples.sequences


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (b"meta", b"1 2 4 2 t", "checksum"),
        (b"data:0", b"rubbish", "checksum"),
        (b"status", b"9 0", "it has no field data:1"),
        (b"status", b"x", "unpack"),
        (b"meta", None, "no field meta"),
    ],
)
def test_what_was_changed_is_noticed(name: bytes, value: bytes | None, words: str) -> None:
    fields = entry()
    if value is None:
        del fields[name]
    else:
        fields[name] = value
    with pytest.raises(UndecodableError, match=words):
        decode(fields)


def test_remains_are_cut() -> None:
    kept = remains(entry(tokens=200_000))
    assert sum(map(len, kept)) < CHUNK_BYTES


def test_names_sort_as_the_stream_does() -> None:
    name = Name.parse(b"00000001764288000123-00000000000000000007:1979:42")
    assert (name.stream_id, name.size, name.index) == ("1764288000123-7", 1979, 42)


def test_every_key_of_a_job_has_its_hash_tag() -> None:
    keys = Keys("default/job/abc")
    for key in (
        keys.incarnation, keys.state, keys.closed, keys.steps, keys.arrivals, keys.epoch("p"),
        keys.stream("p"), keys.dead("p"), keys.entries("p", 1), keys.stored(1),
    ):  # fmt: skip
        assert key.startswith("{default/job/abc}:")


@pytest.mark.parametrize("uid", ["", "a{b", "a}b"])
def test_a_uid_that_would_move_the_hash_tag_is_refused(uid: str) -> None:
    with pytest.raises(InvalidJobError):
        Keys(uid)
