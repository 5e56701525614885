"""One stream entry: what a policy learns from a group, with all that is needed to trust it.

Three column groups: `meta` names the group, `data` is the samples' protobuf in chunks, `status`
says when all of it is there. Samples are checked before they are stored; afterwards a checksum
tells whether these are still the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xxhash
from google.protobuf.message import DecodeError

from flexmarl.contracts.v1 import experience_pb2 as pb

CHUNK_BYTES = 1 << 20
KEPT_BYTES = 1 << 16
"""Of an unreadable payload, for whoever looks into it."""


class UndecodableError(Exception):
    """The entry is not what was written; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Name:
    """How scripts and cursors call an entry: `{ms}-{seq}:{bytes}:{index}`, counters padded."""

    text: str
    position: str
    """`{ms}-{seq}`, padded: sorts as the stream does."""
    size: int
    """Bytes of its payload."""
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


def encode(group: pb.GroupId, task_id: str, samples: pb.PolicySamples) -> tuple[int, list[bytes]]:
    """The payload's size in bytes; fields and values in turn, ready for XADD."""
    payload = samples.SerializeToString()
    size = len(payload)
    meta = f"{group.incarnation} {group.step} {group.index} {samples.version} {task_id}".encode()
    chunks = (size + CHUNK_BYTES - 1) // CHUNK_BYTES
    status = b"%d %s" % (chunks, _checksum(meta, payload))
    fields = [b"meta", meta, b"status", status]
    for number in range(chunks):
        start = number * CHUNK_BYTES
        fields += (b"data:%d" % number, payload[start : start + CHUNK_BYTES])
    return size, fields


def decode(fields: Mapping[bytes, bytes]) -> pb.LeasedGroup:
    """The group that was stored; UndecodableError when it is another or only a part of one."""
    try:
        meta = fields[b"meta"]
        count, checksum = fields[b"status"].split(b" ")
        chunks = [fields[b"data:%d" % number] for number in range(int(count))]
        payload = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if checksum != _checksum(meta, payload):
            raise UndecodableError("its checksum is another one")
        incarnation, step, index, _version, task_id = meta.split(b" ", maxsplit=4)
        return pb.LeasedGroup(
            id=pb.GroupId(incarnation=int(incarnation), step=int(step), index=int(index)),
            task_id=task_id.decode(),
            samples=pb.PolicySamples.FromString(payload),
        )
    except KeyError as error:
        raise UndecodableError(f"it has no field {error.args[0].decode()}") from error
    except (ValueError, DecodeError) as error:
        raise UndecodableError(str(error)) from error


def remains(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Fields and values in turn of an unreadable entry, long ones cut."""
    kept: list[bytes] = []
    for name, value in list(fields.items())[:32]:
        kept += (name, value[:KEPT_BYTES])
    return kept


def _checksum(meta: bytes, payload: bytes) -> bytes:
    digest = xxhash.xxh3_64(meta)
    digest.update(payload)
    return digest.hexdigest().encode()
