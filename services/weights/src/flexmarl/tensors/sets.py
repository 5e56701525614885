"""Versioned tensor sets in plain mapped files: one writer, readers in any process of the pod.

A set has two buffers. The writer fills the one that is not committed, writes a record beside it and
then commits by one aligned 8-byte store of the sequence number in the header; sequence s lives in
buffer s % 2. Killed at any point, it leaves the last committed version whole. Readers take no lock:
they look afterwards whether the writer has started to reuse their buffer (a seqlock).
"""

import contextlib
import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from flexmarl.runtime.errors import (
    CorruptError,
    InvalidRequestError,
    NotFoundError,
    StalePolicyError,
    UnavailableError,
)
from flexmarl.tensors.files import (
    BUFFER_BYTES,
    BUFFERS_AT,
    FORMAT,
    FORMAT_WORD,
    LAYOUT_BYTES,
    MAGIC,
    PAGE,
    RECORD_BYTES,
    RECORD_HEAD,
    SEQUENCE,
    WRITING,
    fence,
    initialise,
    lock_for_writing,
)
from flexmarl.tensors.holding import Hold, set_path, still_named
from flexmarl.tensors.layout import Layout, weights_checksum


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed version. `checksum` covers the weights; `metadata` is the writer's."""

    version: int
    checksum: str
    metadata: dict[str, Any]


class TensorSet:
    """One set, mapped. `create` it to write, `open` it to read; close it, or use `with`."""

    def __init__(self, path: Path, fd: int, hold: Hold, *, writable: bool) -> None:
        self.path = path
        self.name = path.name.removeprefix("flexmarl-")
        self._fd, self._hold, self._writable = fd, hold, writable
        if os.fstat(fd).st_size < PAGE:
            raise CorruptError(f"{path} is no tensor set: it is too short")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, 0, access=access)
        view = memoryview(self._map)
        # Native 8-byte items are stored and loaded whole, never byte by byte.
        self._words = view[:PAGE].cast("Q")
        if bytes(view[: len(MAGIC)]) != MAGIC or self._words[FORMAT_WORD] != FORMAT:
            raise CorruptError(f"{path} is no tensor set of format {FORMAT}")
        layout_at = PAGE + 2 * RECORD_BYTES
        text = bytes(view[layout_at : layout_at + self._words[LAYOUT_BYTES]])
        self.layout = Layout.from_json(text.decode())
        self._records = [
            view[PAGE + i * RECORD_BYTES : PAGE + (i + 1) * RECORD_BYTES] for i in (0, 1)
        ]
        start, size = self._words[BUFFERS_AT], self._words[BUFFER_BYTES]
        if len(view) != start + 2 * size or size < self.layout.nbytes:
            raise CorruptError(f"{path} is {len(view)} bytes long, not {start + 2 * size}")
        self._views = [
            self.layout.views(view[start + i * size : start + (i + 1) * size]) for i in (0, 1)
        ]

    @classmethod
    def create(cls, shm_dir: Path, name: str, layout: Layout) -> "TensorSet":
        """The set to write to. What is committed stays when the layout is the same.

        With another layout the set is replaced; who has the old one open keeps it. UnavailableError
        when another process writes it, JobFailedError when shared memory has no room.
        """
        path = set_path(shm_dir, name)
        hold = Hold.of_set(shm_dir, name)
        with contextlib.ExitStack() as undo:
            undo.callback(hold.release)
            fd = lock_for_writing(path, create=False)
            if fd is not None:
                undo.callback(os.close, fd)
                found = _writer(path, fd, hold, layout)
                if found is not None:
                    undo.pop_all()
                    return found
            # Filled under another name first: what is seen under its own is whole.
            fresh = path.with_name(f"{path.name}.new")
            new = lock_for_writing(fresh, create=True)
            assert new is not None
            new_undo = undo.enter_context(contextlib.ExitStack())
            new_undo.callback(os.close, new)
            new_undo.callback(fresh.unlink, missing_ok=True)
            initialise(new, shm_dir, name, layout)
            os.rename(fresh, path)
            tensor_set = cls(path, new, hold, writable=True)
            new_undo.pop_all()
            if fd is not None:
                os.close(fd)
            undo.pop_all()
            return tensor_set

    @classmethod
    def open(cls, shm_dir: Path, name: str) -> "TensorSet":
        """The set to read from; NotFoundError when there is none."""
        path = set_path(shm_dir, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError(f"no tensor set {name!r} in {shm_dir}") from None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)
            hold = Hold.of_set(shm_dir, name)
            undo.callback(hold.release)
            tensor_set = cls(path, fd, hold, writable=False)
            undo.pop_all()
            return tensor_set

    @property
    def replaced(self) -> bool:
        """Whether the name now means another file, or none: a reader opens it again."""
        return not still_named(self._fd, self.path)

    def committed(self) -> Commit | None:
        """The last committed version; None before the first."""
        return self._committed()[1]

    def _committed(self) -> tuple[int, Commit | None]:
        for _ in range(100):
            sequence = self._words[SEQUENCE]
            if sequence == 0:
                return 0, None
            record = self._records[sequence % 2]
            size, digest = RECORD_HEAD.unpack_from(record)
            text = bytes(record[RECORD_HEAD.size : RECORD_HEAD.size + size])
            if self._overwritten(sequence):
                continue
            if xxhash.xxh3_64_intdigest(text) != digest:
                raise CorruptError(f"the record of tensor set {self.name!r} is damaged")
            fields = json.loads(text)
            return sequence, Commit(fields["version"], fields["checksum"], fields["metadata"])
        raise UnavailableError(f"tensor set {self.name!r} is rewritten faster than it can be read")

    def _overwritten(self, sequence: int) -> bool:
        """Whether the writer has begun with what reuses the buffer of `sequence`."""
        fence()
        return self._words[WRITING] >= sequence + 2

    @contextmanager
    def reading(self, version: int | None = None) -> Iterator[dict[str, memoryview]]:
        """The bytes of each tensor at `version` (None: the committed one), without a copy.

        StalePolicyError when another version is committed, or when the block ends and the writer
        has meanwhile begun to overwrite it: what was read is then worthless. NotFoundError when
        nothing is committed. Keep no view beyond the block.
        """
        sequence, commit = self._committed()
        if commit is None:
            raise NotFoundError(f"tensor set {self.name!r} has no committed version")
        if version is not None and commit.version != version:
            raise StalePolicyError(
                f"tensor set {self.name!r} is at version {commit.version}, not {version}"
            )
        stale = StalePolicyError(
            f"version {commit.version} of tensor set {self.name!r} was overwritten while read"
        )
        try:
            yield dict(self._views[sequence % 2])
        except CorruptError as error:
            if self._overwritten(sequence):  # that is why
                raise stale from error
            raise
        if self._overwritten(sequence):
            raise stale

    @contextmanager
    def writing(
        self, version: int, metadata: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, memoryview]]:
        """Writable bytes of each tensor, holding anything; committed when the block ends well.

        The writer fills them in place, so the weights are copied once. After the block `committed`
        is the new version; an exception leaves the last one.
        """
        if not self._writable:
            raise InvalidRequestError(f"tensor set {self.name!r} is open for reading only")
        following = self._words[SEQUENCE] + 1
        views = self._views[following % 2]
        self._words[WRITING] = following
        fence()
        yield dict(views)
        fields = {
            "version": version,
            "checksum": weights_checksum(self.layout, views),
            "metadata": dict(metadata or {}),
        }
        text = json.dumps(fields).encode()
        if len(text) > RECORD_BYTES - RECORD_HEAD.size:
            raise InvalidRequestError(f"metadata of {len(text)} bytes: at most {RECORD_BYTES}")
        record = self._records[following % 2]
        RECORD_HEAD.pack_into(record, 0, len(text), xxhash.xxh3_64_intdigest(text))
        record[RECORD_HEAD.size : RECORD_HEAD.size + len(text)] = text
        fence()
        self._words[SEQUENCE] = following

    def write(
        self, version: int, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> Commit:
        """Copy `tensors` (contiguous buffers, one for each name of the layout) and commit them."""
        missing, extra = self.layout.tensors.keys() - tensors, tensors - self.layout.tensors.keys()
        if missing or extra:
            raise InvalidRequestError(f"missing {sorted(missing)}, not in the set {sorted(extra)}")
        with self.writing(version, metadata) as views:
            for name, view in views.items():
                data = memoryview(tensors[name])
                if data.nbytes != view.nbytes:
                    raise InvalidRequestError(
                        f"tensor {name!r}: {data.nbytes} bytes given, {view.nbytes} needed"
                    )
                if data.nbytes:  # a buffer of no bytes cannot be cast
                    view[:] = data.cast("B")
        commit = self.committed()
        assert commit is not None
        return commit

    def verify(self) -> Commit:
        """The committed version, its weights checked; CorruptError when a byte has changed."""
        commit = self.committed()
        if commit is None:
            raise NotFoundError(f"tensor set {self.name!r} has no committed version")
        with self.reading(commit.version) as views:
            found = weights_checksum(self.layout, views)
        if found != commit.checksum:
            raise CorruptError(
                f"version {commit.version} of tensor set {self.name!r} has checksum {found}, "
                f"committed was {commit.checksum}"
            )
        return commit

    def unlink(self) -> None:
        """Remove the name; who has the set open keeps it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of file and lock. Memory stays mapped while a view of it is in use."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        self._views, self._records = [], []
        self._words.release()
        if self._writable:
            fcntl.flock(fd, fcntl.LOCK_UN)  # the map has a duplicate of fd, which would keep it
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(fd)
        self._hold.release()

    def __enter__(self) -> "TensorSet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _writer(path: Path, fd: int, hold: Hold, layout: Layout) -> TensorSet | None:
    """The set open at `fd` when it can be taken over: sound, and of this layout."""
    try:
        found = TensorSet(path, fd, hold, writable=True)
    except CorruptError:
        return None
    same = list(found.layout.tensors.items()) == list(layout.tensors.items())
    return found if same else None
