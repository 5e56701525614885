"""Makes a folder out of a remote's files: complete, or not there.

- The folder appears by one rename, after every file has its size and its digest. Another version of
  the files is another folder (`versions`).
- Until then all lies in `NAME.partial`; whoever comes next goes on at the byte where the last one
  stopped, however it ended.
- One process at a time works on a folder, others wait for it (a lock on `NAME.lock`), so that
  several pods may share a volume.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

import structlog

from flexmarl.contracts.preparation import Fetching
from flexmarl.fetch.errors import FetchError, InterruptedReadError, Reason, of_os
from flexmarl.fetch.remote import Digest, Remote, RemoteFile
from flexmarl.fetch.versions import NEWEST, choose, chosen, folder_for

log = structlog.get_logger()

AT_ONCE = 4
"""Files."""
ATTEMPTS = 6
"""In a row that bring no byte, before the server counts as unreachable: about 30 s."""
ATTEMPTS_AGAIN = 2
"""To ask whether what is there has changed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
REPORT_SECONDS = 10.0
MARKER = ".flexmarl.json"
"""In a complete folder: where it came from."""
PARTS, PLAN = ".parts", ".plan.json"

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class Transfer:
    """How far it is; counts what was there before, too."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    unchecked: str = ""
    """Why the server could not be asked, if it was to be and what was there is used."""
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int, *, resumed: bool = False) -> None:
        with self._lock:
            self.done += count
            self.resumed += count if resumed else 0


def download(remote: Remote, base: Path, reader: str = "") -> tuple[Path, Transfer]:
    """The folder with what `remote` has now, made unless it is there; FetchError.

    `reader`: from now on it reads that one; the choice that it made before stays.
    """
    transfer = Transfer()
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        with locked(base):
            folder = chosen(base, reader)
            if folder is None:
                folder = _newest(remote, base, transfer)
                for one in filter(None, (NEWEST, reader)):
                    choose(base, one, folder)
    except OSError as error:
        raise of_os(error, remote.uri, base.parent) from error
    return folder, transfer


def _newest(remote: Remote, base: Path, transfer: Transfer) -> Path:
    before = chosen(base, NEWEST)
    try:
        files = patiently(remote.uri, remote.files, ATTEMPTS_AGAIN if before else ATTEMPTS)
    except FetchError as error:
        if before is None or error.reason is not Reason.UNREACHABLE:
            raise
        log.warning("cannot be asked, what is there is used", uri=remote.uri, why=str(error))
        transfer.unchecked = str(error)
        return before
    folder = folder_for(base, files)
    if not folder.is_dir():
        _make(remote, files, base.with_name(f"{base.name}.partial"), folder, transfer)
    return folder


def _make(
    remote: Remote, files: Sequence[RemoteFile], partial: Path, folder: Path, transfer: Transfer
) -> None:
    if not files:
        says = "none of its files is one that is wanted (safetensors, json, tokenizer.model)"
        raise FetchError(remote.uri, Reason.NOT_FOUND, says)
    (partial / PARTS).mkdir(parents=True, exist_ok=True)
    _forget_what_changed(remote.uri, partial, files)
    transfer.total = sum(file.size for file in files)
    _check_room(remote.uri, partial, files)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        jobs = [pool.submit(_bring, remote, file, partial, transfer) for file in files]
        try:
            _watch(remote.uri, jobs, transfer)
        finally:
            transfer.stop.set()
    shutil.rmtree(partial / PARTS)
    (partial / PLAN).unlink()
    marker = {"uri": remote.uri, "bytes": transfer.total, "files": len(files)}
    (partial / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
    os.replace(partial, folder)
    _sync_folder(folder.parent)


def _watch(uri: str, jobs: Sequence[Future[None]], transfer: Transfer) -> None:
    """Until all are done or one has failed; says how far it is from time to time."""
    before, at = transfer.done - transfer.resumed, time.monotonic()
    while True:
        done, rest = wait(jobs, timeout=REPORT_SECONDS, return_when=FIRST_EXCEPTION)
        for job in done:
            job.result()
        if not rest:
            return
        brought, now = transfer.done - transfer.resumed, time.monotonic()
        rate = max(0, brought - before) / (now - at) / (1 << 20)
        before, at = brought, now
        mib = transfer.done >> 20, transfer.total >> 20
        log.info(Fetching.EVENT, **asdict(Fetching(uri, *mib, float(f"{rate:.3g}"))))


def _bring(remote: Remote, file: RemoteFile, partial: Path, transfer: Transfer) -> None:
    """One file, whole and checked, at its place in `partial`."""
    target = partial / file.path
    if target.is_file() and target.stat().st_size == file.size:  # was checked before it got there
        transfer.add(file.size, resumed=True)
        return
    part = partial / PARTS / hashlib.sha256(file.path.encode()).hexdigest()
    seen: set[str] = set()
    while True:
        digest = _transfer(remote, file, part, transfer)
        if file.digest is None or digest == file.digest.value:
            break
        if digest in seen and not file.digest.sure:
            break  # twice the same: the server's tag is no digest
        if seen and (digest in seen or len(seen) > 1):
            says = f"{file.path} arrives with another checksum than the server announces"
            raise FetchError(remote.uri, Reason.DAMAGED, f"{says}; upload it again")
        seen.add(digest)
        log.warning("checksum differs, fetching again", uri=remote.uri, file=file.path)
        transfer.add(-part.stat().st_size)
        part.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, target)


def _transfer(remote: Remote, file: RemoteFile, part: Path, transfer: Transfer) -> str:
    """All bytes of `file` in `part`, from where it is; what they hash to."""
    hasher = _hasher(file)
    failures = 0
    with part.open("ab+") as out:
        out.seek(0)
        while chunk := out.read(1 << 20):
            hasher.update(chunk)
        offset = out.tell()
        transfer.add(offset, resumed=True)
        while offset < file.size:
            began = offset
            try:
                with closing(remote.read(file, offset)) as chunks:
                    for chunk in chunks:
                        if transfer.stop.is_set():
                            raise InterruptedReadError("another file failed")
                        out.write(chunk)
                        out.flush()
                        hasher.update(chunk)
                        offset += len(chunk)
                        transfer.add(len(chunk))
                if offset == began:
                    raise InterruptedReadError("the server sends nothing")
            except InterruptedReadError as error:
                if transfer.stop.is_set():
                    raise FetchError(remote.uri, Reason.UNREACHABLE, str(error)) from error
                failures = 1 if offset > began else failures + 1
                _pause(remote.uri, failures, error)
        if offset > file.size:
            part.unlink()
            says = f"{file.path} is longer than the {file.size} bytes that the server announces"
            raise FetchError(remote.uri, Reason.DAMAGED, f"{says}; upload it again")
        os.fsync(out.fileno())
    return hasher.hexdigest()


def patiently(uri: str, call: Callable[[], ResultT], attempts: int = 0) -> ResultT:
    """What `call` returns, tried again while it is interrupted."""
    failures = 0
    while True:
        try:
            return call()
        except InterruptedReadError as error:
            failures += 1
            _pause(uri, failures, error, attempts or ATTEMPTS)


def _pause(uri: str, failures: int, error: InterruptedReadError, attempts: int = 0) -> None:
    if failures >= (attempts or ATTEMPTS):
        says = f"cannot be reached: {error}; check the network and the address"
        raise FetchError(uri, Reason.UNREACHABLE, says) from error
    log.warning(Fetching.INTERRUPTED, uri=uri, why=str(error), attempt=failures)
    time.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1)))


def _hasher(file: RemoteFile) -> hashlib._Hash:
    digest = file.digest or Digest("sha256", "")
    if digest.algorithm == "git":
        return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    return hashlib.new(digest.algorithm, usedforsecurity=False)


def _forget_what_changed(uri: str, partial: Path, files: Sequence[RemoteFile]) -> None:
    """Throw away what is left of other versions, and parts that a crash of the machine may have
    torn where no digest would tell."""
    versions = {file.path: file.version for file in files}
    for path in versions:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or pure.parts[:1] in ((PARTS,), (PLAN,)):
            raise FetchError(uri, Reason.DAMAGED, f"the server names a file {path!r}; refused")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        old = json.loads((partial / PLAN).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        old = {"versions": {}, "boot": ""}
    for file in files:
        part = partial / PARTS / hashlib.sha256(file.path.encode()).hexdigest()
        same = old["versions"].get(file.path) == file.version
        certain = old["boot"] == boot or file.digest is not None
        if not same or not certain:
            part.unlink(missing_ok=True)
        if not same:
            (partial / file.path).unlink(missing_ok=True)
    for path in old["versions"].keys() - versions.keys():
        (partial / path).unlink(missing_ok=True)
    scratch = partial / f"{PLAN}.new"
    scratch.write_text(json.dumps({"versions": versions, "boot": boot}), encoding="utf-8")
    scratch.replace(partial / PLAN)


def _check_room(uri: str, partial: Path, files: Sequence[RemoteFile]) -> None:
    there = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    needed = sum(file.size for file in files) - there
    free = shutil.disk_usage(partial).free
    if needed > free:
        says = (
            f"{needed / 2**20:.0f} MiB are missing, but the volume of {partial.parent} has "
            f"{free / 2**20:.0f} MiB free; give the cache a larger volume or empty it"
        )
        raise FetchError(uri, Reason.DISK_FULL, says)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone with `folder`, among all processes that see the volume."""
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info(Fetching.WAITING, folder=str(folder))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
