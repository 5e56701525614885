from __future__ import annotations

import pytest
from tests.unit.experience.groups import request

from flexmarl.contracts.v1 import experience_pb2 as pb
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
Fields = dict[bytes, bytes]


def entry(tokens: int = 4, episodes: int = 2, silent: frozenset[str] = frozenset()) -> Fields:
    message = request(GROUP, tokens=tokens, episodes=episodes, silent=silent)
    samples = message.policies[0]
    arrays = samples.token_ids, samples.loss_mask, samples.logprobs
    _, fields = encode(message.id, "a task, with spaces", samples, arrays)
    values = [bytes(value) for value in fields]
    return dict(zip(values[::2], values[1::2], strict=True))


def read(fields: Fields) -> pb.LeasedGroup:
    group = pb.LeasedGroup()
    decode(fields, into=group)
    return group


def test_an_entry_reads_back() -> None:
    group = read(entry())
    assert group.id == request(GROUP).id
    assert group.task_id == "a task, with spaces"
    assert group.samples == request(GROUP).policies[0]


def test_large_arrays_are_cut_into_chunks() -> None:
    fields = entry(tokens=200_000)
    chunks = {name: len(value) for name, value in fields.items() if name.startswith(b"data:")}
    assert chunks == {
        b"data:token_ids:0": CHUNK_BYTES,
        b"data:token_ids:1": 1_600_000 - CHUNK_BYTES,
        b"data:loss_mask:0": 400_000,
        b"data:logprobs:0": CHUNK_BYTES,
        b"data:logprobs:1": 1_600_000 - CHUNK_BYTES,
    }
    assert read(fields).samples == request(GROUP, tokens=200_000).policies[0]


def test_an_empty_marker_reads_back() -> None:
    assert not read(entry(silent=frozenset({"solver"}))).samples.sequences


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (b"meta", b"1 2 4 2 t", "checksum"),
        (b"meta:samples", b"", "checksum"),
        (b"data:token_ids:0", b"rubbish", "checksum"),
        (b"status", b"1 2 1 0", "it has no field data:loss_mask:1"),
        (b"status", b"x", "zip"),
        (b"status", b"1 x 1 0", "invalid literal"),
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
        read(fields)


def test_what_moved_from_one_field_to_the_next_is_noticed() -> None:
    fields = entry()
    ids, mask = fields[b"data:token_ids:0"], fields[b"data:loss_mask:0"]
    fields |= {b"data:token_ids:0": ids + mask[:1], b"data:loss_mask:0": mask[1:]}
    with pytest.raises(UndecodableError, match="checksum"):
        read(fields)


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
