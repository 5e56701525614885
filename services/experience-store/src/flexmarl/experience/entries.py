"""One group of one policy in the server: an entry of the policy's stream, and beside it its data.

Three column groups. `meta` names the group, `data` is what the policy learns from it, `status` says
how long the data is and, by a checksum over both, that they are what was checked and written. Data
lies in a key of its own, named by the entry: as a field it would be copied several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from flexmarl.experience.wire import Part, WireGroup, WireSamples, group_message

FORM = b"columns-2"
"""How data is written; of an entry of another form it cannot be read."""
KEPT_BYTES = 1 << 16
"""Of unreadable data, for whoever looks into it."""


class UndecodableError(Exception):
    """The entry is not what was written; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Name:
    """How scripts and cursors call an entry: `{ms}-{seq}:{bytes}:{index}`, counters padded."""

    text: str
    position: str
    """`{ms}-{seq}`, padded: sorts as the stream does."""
    size: int
    """Bytes of its data."""
    index: int

    @classmethod
    def parse(cls, raw: bytes) -> Name:
        text = raw.decode()
        position, size, index = text.split(":")
        return cls(text, position, int(size), int(index))

    @property
    def stream_id(self) -> str:
        left, right = self.position.split("-")
        return f"{int(left)}-{int(right)}"


@dataclass(frozen=True, slots=True)
class Entry:
    meta: bytes
    status: bytes
    data: Part
    """A leased group's message."""


def encode(group: WireGroup, samples: WireSamples) -> Entry:
    """Of the policy that `samples` are of."""
    id_ = group.id
    version = samples.head.version
    meta = f"{id_.incarnation} {id_.step} {id_.index} {version} {group.task_id}".encode()
    # Then the group is what will be leased, byte by byte.
    alone = len(group.policies) == 1 and not group.note
    data = group.raw if alone else b"".join(group_message(id_, group.task_id, [[samples.raw]]))
    return Entry(meta, b"%s %d %s" % (FORM, len(data), _checksum(meta, data)), data)


def check(fields: Mapping[bytes, bytes], data: bytes, step: int, index: int) -> None:
    """UndecodableError unless this is all of the group (step, index), as it was written."""
    try:
        meta, status = fields[b"meta"], fields[b"status"]
    except KeyError as error:
        raise UndecodableError(f"it has no field {error.args[0].decode()}") from error
    form, _, told = status.partition(b" ")
    if form != FORM:
        raise UndecodableError("another version of FlexMARL wrote it")
    size, _, checksum = told.partition(b" ")
    if size != b"%d" % len(data):
        raise UndecodableError(f"it has {len(data)} bytes, not {size.decode(errors='replace')}")
    if checksum != _checksum(meta, data):
        raise UndecodableError("its checksum is another one")
    named = meta.split(b" ", maxsplit=4)[1:3]
    if named != [b"%d" % step, b"%d" % index]:
        raise UndecodableError(f"it is step {named[0].decode()}, index {named[1].decode()}")


def remains(fields: Mapping[bytes, bytes], data: bytes) -> list[bytes]:
    """Fields and values in turn of an unreadable entry, long ones cut."""
    kept: list[bytes] = []
    for name, value in [*list(fields.items())[:32], (b"data", data)]:
        kept += (name, value[:KEPT_BYTES])
    return kept


def _checksum(meta: bytes, data: Part) -> bytes:
    digest = xxhash.xxh3_64(b"%d " % len(meta))
    digest.update(meta)
    digest.update(data)
    return digest.hexdigest().encode()
