"""The messages that carry arrays, put together and taken apart around them. Pure.

They are protobuf like all others, but its library copies bytes whenever it builds, nests, writes,
reads or hands out a message. Here a group is one `join` on its way in, is stored as the very bytes
that came, and leaves as these again; whatever is small the library reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.columns import Tables

Part: TypeAlias = bytes | memoryview
Arrays: TypeAlias = tuple[bytes, bytes, bytes]
"""Token ids, mask and log-probs of samples."""

_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}


def _tag(
    message: type[pb.PolicySamples | pb.LeasedGroup | pb.LeaseResponse | pb.AppendGroupsRequest],
    name: str,
) -> int:
    return message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED


_COLUMNS = {
    "token_ids": None,
    "loss_mask": None,
    "logprobs": None,
    "sequences": (np.dtype("<u4"), 6),
    "rewards": (np.dtype("<f8"), 1),
    "turns": (np.dtype("<u4"), 6),
    "temperatures": (np.dtype("<f4"), 1),
    "turn_rewards": (np.dtype("<f8"), 1),
    "spans": (np.dtype("<u8"), 3),
}
"""Type and width of those that are tables; what protobuf packs are raw values, end to end."""
_ARRAYS = [_tag(pb.PolicySamples, name) for name in _COLUMNS]
_TABLES = [(name, *shape) for name, shape in _COLUMNS.items() if shape]
_SAMPLES = _tag(pb.LeasedGroup, "samples")
"""Of an offered group as well: but for how many samples it has, it is a leased group."""
_OFFERED = _tag(pb.AppendGroupsRequest, "groups")
_GROUPS = _tag(pb.LeaseResponse, "groups")


@dataclass(frozen=True, slots=True)
class WireSamples:
    """Samples of one policy as they came."""

    head: pb.PolicySamples
    """All but tables and arrays."""
    tables: Tables
    arrays: Arrays
    raw: Part
    """The whole message."""


@dataclass(frozen=True, slots=True)
class WireGroup:
    """A group as it came, for one policy or several."""

    id: pb.GroupId
    task_id: str
    policies: list[WireSamples]
    raw: Part
    """The whole message."""
    note: bytes = b""


def size_of(parts: Iterable[Part]) -> int:
    """In bytes."""
    return sum([part.nbytes if isinstance(part, memoryview) else len(part) for part in parts])


def samples_message(
    head: pb.PolicySamples, arrays: Iterable[Sequence[Part]], tables: Tables
) -> list[Part]:
    """Parts of the message; of each array its pieces."""
    parts: list[Part] = [head.SerializeToString()]
    columns = [*arrays, *([getattr(tables, name).tobytes()] for name, _, _ in _TABLES)]
    for tag, pieces in zip(_ARRAYS, columns, strict=True):
        if size := size_of(pieces):
            parts += (_start(tag, size), *pieces)
    return parts


def group_message(
    group: pb.GroupId, task_id: str, policies: Iterable[Sequence[Part]], note: bytes = b""
) -> list[Part]:
    """Parts of an offered group; of one policy and without a note, of a leased group."""
    head = pb.OfferedGroup(id=group, task_id=task_id, note=note)
    parts: list[Part] = [head.SerializeToString()]
    for samples in policies:
        parts += (_start(_SAMPLES, size_of(samples)), *samples)
    return parts


def append_message(
    groups: Iterable[Sequence[Part]], played: Iterable[float] = (), clock: int = 0
) -> bytes:
    """A request to append, of groups in parts."""
    parts: list[Part] = []
    for group in groups:
        parts += (_start(_OFFERED, size_of(group)), *group)
    parts.append(pb.AppendGroupsRequest(played=played, clock=clock).SerializeToString())
    return b"".join(parts)


def lease_message(groups: Iterable[Part], rest: pb.LeaseResponse) -> bytes:
    """The answer to a lease: groups as they are, and what comes beside them."""
    parts: list[Part] = []
    for group in groups:
        parts += (_start(_GROUPS, len(group)), group)
    parts.append(rest.SerializeToString())
    return b"".join(parts)


def read_append(raw: Part) -> tuple[list[memoryview], pb.AppendGroupsRequest]:
    """The groups of a request to append, and the rest of it; DecodeError when it is none."""
    rest, found = _without(raw, [_OFFERED])
    return found[_OFFERED], pb.AppendGroupsRequest.FromString(rest)


def read_samples(raw: Part) -> WireSamples:
    """DecodeError when it is no message of samples."""
    rest, found = _without(raw, _ARRAYS)
    ids, mask, logprobs, *tables = [_only(found[tag]) for tag in _ARRAYS]
    columns = [_table(each, *shape) for each, shape in zip(tables, _TABLES, strict=True)]
    head = pb.PolicySamples.FromString(rest)
    if any(getattr(head, name) for name, _, _ in _TABLES):
        raise DecodeError("a table is not packed")
    return WireSamples(head, Tables(*columns), (ids, mask, logprobs), raw)


def read_group(raw: Part) -> WireGroup:
    """DecodeError when it is no group."""
    rest, found = _without(raw, [_SAMPLES])
    head = pb.OfferedGroup.FromString(rest)
    policies = [read_samples(each) for each in found[_SAMPLES]]
    return WireGroup(head.id, head.task_id, policies, raw, head.note)


def read_lease(raw: Part) -> tuple[list[WireGroup], pb.LeaseResponse]:
    """Groups and what comes beside them; DecodeError when it is no answer to a lease."""
    rest, found = _without(raw, [_GROUPS])
    return [read_group(each) for each in found[_GROUPS]], pb.LeaseResponse.FromString(rest)


def _without(raw: Part, tags: Sequence[int]) -> tuple[bytes, dict[int, list[memoryview]]]:
    """The message without the fields of these tags, and their values in turn."""
    view = memoryview(raw)
    found: dict[int, list[memoryview]] = {tag: [] for tag in tags}
    kept, since = list[memoryview](), 0
    for tag, start, value, end in _fields(view):
        if tag in found:
            found[tag].append(view[value:end])
            if start > since:
                kept.append(view[since:start])
            since = end
    kept.append(view[since:])
    return b"".join(kept), found


def _table(raw: bytes, name: str, dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    try:
        values = np.frombuffer(raw, dtype)
        return values.reshape(-1, width) if width > 1 else values
    except ValueError:
        raise DecodeError(f"{len(raw)} bytes are no {name}") from None


def _only(values: list[memoryview]) -> bytes:
    """A copy, so that what looks into it is aligned and does not keep the whole message."""
    if len(values) > 1:
        raise DecodeError("an array comes twice")
    return bytes(values[0]) if values else b""


def _fields(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message its tag and where it, its value and the next field start."""
    at, end = 0, len(view)
    try:
        while at < end:
            start = at
            tag, at = _varint(view, at)
            kind, value = tag & 7, at
            if kind == _LENGTH_DELIMITED:
                size, value = _varint(view, at)
                at = value + size
            elif kind == 0:
                _, at = _varint(view, at)
            elif kind in _FIXED:
                at += _FIXED[kind]
            else:
                raise DecodeError(f"no field has wire type {kind}")
            if at > end:
                raise DecodeError("it was cut off")
            yield tag, start, value, at
    except IndexError:
        raise DecodeError("it was cut off") from None


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next byte is."""
    byte = view[at]
    at += 1
    if byte < 0x80:
        return byte, at
    number, shift = byte & 0x7F, 7
    while True:
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number has more than 64 bits")


def _start(tag: int, size: int) -> bytes:
    """What stands before the value of a field."""
    start = bytearray((tag,))  # all of ours are below 16, so their tags have one byte
    while size > 0x7F:
        start.append(size & 0x7F | 0x80)
        size >>= 7
    start.append(size)
    return bytes(start)
