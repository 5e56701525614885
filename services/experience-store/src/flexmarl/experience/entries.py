"""One stream entry: what a policy learns from a group, with all that is needed to trust it.

Three column groups: `meta` names the group and `meta:samples` tells who said what and when, without
the arrays; those are `data`, each in chunks; `status` says when all of it is there. Samples are
checked before they are stored; afterwards a checksum tells whether these are still the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import xxhash
from google.protobuf.message import DecodeError

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.checks import Arrays

CHUNK_BYTES = 1 << 20
ARRAYS = (b"token_ids", b"loss_mask", b"logprobs")
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


def encode(
    group: pb.GroupId, task_id: str, samples: pb.PolicySamples, arrays: Arrays
) -> tuple[int, list[bytes | memoryview]]:
    """The payload's size in bytes; fields and values in turn, ready for XADD.

    `arrays` are those of the samples.
    """
    head = pb.PolicySamples(
        policy=samples.policy, version=samples.version, sequences=samples.sequences
    ).SerializeToString()
    meta = f"{group.incarnation} {group.step} {group.index} {samples.version} {task_id}".encode()
    fields: list[bytes | memoryview] = [b"meta", meta, b"meta:samples", head]
    counts = []
    for name, array in zip(ARRAYS, arrays, strict=True):
        chunks = _chunks(array)
        counts.append(len(chunks))
        for number, chunk in enumerate(chunks):
            fields += (b"data:%s:%d" % (name, number), chunk)
    numbers = b" ".join(b"%d" % count for count in counts)
    fields += (b"status", b"%s %s" % (numbers, _checksum(meta, head, *arrays)))
    return len(head) + sum(map(len, arrays)), fields


def decode(fields: Mapping[bytes, bytes], into: pb.LeasedGroup) -> None:
    """Fill in the group that was stored; UndecodableError when it is another or a part of one."""
    try:
        meta, head = fields[b"meta"], fields[b"meta:samples"]
        *counts, checksum = fields[b"status"].split(b" ")
        arrays = [
            _joined([fields[b"data:%s:%d" % (name, number)] for number in range(int(count))])
            for name, count in zip(ARRAYS, counts, strict=True)
        ]
        if checksum != _checksum(meta, head, *arrays):
            raise UndecodableError("its checksum is another one")
        incarnation, step, index, _version, task_id = meta.split(b" ", maxsplit=4)
        into.id.incarnation, into.id.step, into.id.index = int(incarnation), int(step), int(index)
        into.task_id = task_id.decode()
        samples = into.samples
        samples.MergeFromString(head)
        samples.token_ids, samples.loss_mask, samples.logprobs = arrays
    except KeyError as error:
        raise UndecodableError(f"it has no field {error.args[0].decode()}") from error
    except (ValueError, DecodeError) as error:
        raise UndecodableError(str(error)) from error


def _chunks(array: bytes) -> list[bytes | memoryview]:
    if len(array) <= CHUNK_BYTES:
        return [array] if array else []
    view = memoryview(array)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(array), CHUNK_BYTES)]


def _joined(chunks: list[bytes]) -> bytes:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def remains(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Fields and values in turn of an unreadable entry, long ones cut."""
    kept: list[bytes] = []
    for name, value in list(fields.items())[:32]:
        kept += (name, value[:KEPT_BYTES])
    return kept


def _checksum(*parts: bytes) -> bytes:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.hexdigest().encode()
