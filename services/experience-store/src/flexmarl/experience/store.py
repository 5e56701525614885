"""The experience store: groups wait here between the workers that play them and the trainers.

1. Whole groups: a group is stored with all its episodes or not at all, and leased the same way.
2. All policies in one transaction: an entry per trained policy, an empty one where it took no turn,
   so that every policy sees the same indexes of a step.
3. Nothing twice: a (step, index) that is stored, or whose step is closed, is not stored again,
   whoever asks; one that was lost is asked for again, for the policies alone that lost it.
4. Epochs, not leases: what was handed out stays until it is committed. A reader that was replaced
   has an older epoch, a writer an older incarnation; both are refused, no clock decides.

Full memory makes producers wait; nothing is ever trimmed. Stateless: all of it is in the server,
what this process remembers beside it (`fresh`) saves reading only.

Which entries of a policy's stream belong to a step stands in a sorted set beside it, because with
staleness several steps lie mixed in one stream: leases and commits touch their own step only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Counter, Gauge

from flexmarl.experience import scripts
from flexmarl.experience.appends import Appends, Written
from flexmarl.experience.arrivals import Arrivals
from flexmarl.experience.checks import MAX_COUNTER, check_groups, group_name
from flexmarl.experience.connection import Server, check_server, connect, translated
from flexmarl.experience.fresh import Fresh
from flexmarl.experience.fullness import Fullness, Memory
from flexmarl.experience.handout import Handout
from flexmarl.experience.keys import Keys
from flexmarl.experience.leases import Leases, Wanted, check_cursor
from flexmarl.experience.moments import now
from flexmarl.experience.scripts import refuse_fenced
from flexmarl.experience.wire import Part, WireGroup, read_group
from flexmarl.runtime.errors import (
    FencedError,
    FlexMARLError,
    FullError,
    InvalidRequestError,
    StalePolicyError,
    UnavailableError,
)

APPENDS = Counter("flexmarl_experience_appends_total", "Groups offered.", ["outcome"])
BYTES = Counter("flexmarl_experience_stored_bytes_total", "Payload of stored groups.")
LAG = Gauge("flexmarl_experience_lag_groups", "Groups stored and not deleted.", ["policy"])
PURGED = Counter("flexmarl_experience_purged_total", "Entries that a closed step left.")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredStep:
    indexes: list[int]
    closed: bool
    notes: dict[int, bytes]
    """Of those that came with one."""
    full: Memory | None
    """While groups wait for room, of whichever step."""


class Store:
    """The store of the job `uid`, whose trained policies are `policies`, in the server at `url`.

    Raises FencedError, FullError, UnavailableError; InvalidRequestError and StalePolicyError for
    what no retry can mend. `alone`: nobody else keeps anything in the server. `ca_file`: whose
    certificates are trusted under `rediss://`.
    """

    def __init__(
        self,
        url: str,
        uid: str,
        policies: Sequence[str],
        *,
        max_staleness: int = 0,
        alone: bool = False,
        ca_file: Path | None = None,
    ) -> None:
        self._keys = keys = Keys(uid)
        self._policies = frozenset(policies)
        self._order = sorted(policies)
        self._max_staleness = max_staleness
        self._redis = connect(url, ca_file)
        self._fullness = Fullness(self._redis, alone=alone)
        fresh = Fresh()
        self._arrivals = Arrivals(self._redis, keys.arrivals)
        self._handout = Handout(Leases(self._redis, keys, fresh), self._arrivals, fresh)
        self._watcher: asyncio.Task[None] | None = None
        self._take = self._redis.register_script(scripts.TAKE)
        self._take_epoch = self._redis.register_script(scripts.TAKE_EPOCH)
        self._check_epoch = self._redis.register_script(scripts.CHECK)
        self._roll_back = self._redis.register_script(scripts.ROLL_BACK)
        self._appends = Appends(self._redis, keys, fresh, self._arrivals)
        self._commit = self._redis.register_script(scripts.COMMIT)
        self._close = self._redis.register_script(scripts.CLOSE)
        self._put_state = self._redis.register_script(scripts.PUT_STATE)

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._arrivals.watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._redis.aclose()

    def release(self) -> None:
        """Leases no longer wait: to be called before the service drains."""
        self._arrivals.release()

    async def serve(self) -> None:
        """Until cancelled; JobFailedError once the memory cannot hold a single step."""
        assert self._watcher is not None
        judged = asyncio.ensure_future(self._fullness.judged())
        try:
            # Without the watcher leases would but poll, which nobody would notice.
            await asyncio.wait({judged, self._watcher}, return_when=asyncio.FIRST_COMPLETED)
            for each in (judged, self._watcher):
                if each.done():
                    each.result()
        finally:
            judged.cancel()

    async def check(self) -> Server:
        """The server; InvalidJobError when groups are not safe in it."""
        return await check_server(self._redis, self._keys.tag)

    async def take_incarnation(self) -> int:
        """A new incarnation, which fences older ones."""
        async with translated():
            taken = await self._take([self._keys.incarnation])
        log.info("incarnation taken", incarnation=taken)
        return int(taken)

    async def roll_back(self, incarnation: int, step: int) -> None:
        """Forget what is stored of this step and of later ones; they are open again."""
        _check_counters(incarnation=incarnation, step=step)
        keys = self._keys
        async with translated():
            outcome, *rest = await self._roll_back(
                [keys.incarnation, keys.closed, keys.steps, *map(keys.stream, self._order)],
                [incarnation, step, keys.prefix, *self._order],
            )
        refuse_fenced("incarnation", incarnation, outcome, rest)
        log.info("rolled back", step=step)

    async def take_epoch(self, policy: str, incarnation: int) -> int:
        """A new epoch of the policy, which fences older ones."""
        self._known(policy)
        _check_counters(incarnation=incarnation)
        keys = self._keys
        async with translated():
            outcome, *rest = await self._take_epoch(
                [keys.incarnation, keys.epoch(policy)], [incarnation, keys.arrivals]
            )
        refuse_fenced("incarnation", incarnation, outcome, rest)
        log.info("epoch taken", policy=policy, epoch=rest[0])
        return int(rest[0])

    async def check_epoch(self, policy: str, epoch: int) -> None:
        """FencedError: a newer one was taken."""
        self._known(policy)
        _check_counters(epoch=epoch)
        async with translated():
            outcome, *rest = await self._check_epoch([self._keys.epoch(policy)], [epoch])
        refuse_fenced("epoch", epoch, outcome, rest)

    async def append(
        self, groups: Sequence[Part], played: Sequence[float] = ()
    ) -> list[bool | FlexMARLError]:
        """Store each group (an OfferedGroup), all its policies at once; what became of each.

        False: it was stored or trained before. An error of one is none of the others'. `played`:
        when each was, by the clock of this process, where that is known.
        """
        moments = _moments(played, len(groups))
        found: dict[int, bool | FlexMARLError] = {}
        checked: dict[int, WireGroup] = {}
        for number, raw in enumerate(groups):
            try:
                checked[number] = _read(raw)
            except InvalidRequestError as error:
                found[number] = error
        try:
            check_groups(checked.values(), self._policies, self._max_staleness)
        except (InvalidRequestError, StalePolicyError):  # of one: which?
            for number, group in list(checked.items()):
                if (refusal := self._refusal(group)) is not None:
                    found[number] = refusal
                    del checked[number]
        async with translated():
            written = await self._appends.write(
                list(checked.values()), [moments[number] for number in checked]
            )
        for (number, group), said in zip(checked.items(), written, strict=True):
            try:
                found[number] = await self._judged(group, said)
            except (FencedError, FullError, UnavailableError) as error:
                found[number] = error
        return [found[number] for number in range(len(groups))]

    async def _judged(self, group: WireGroup, said: Written) -> bool:
        """Whether it is stored now and was not before."""
        id_, outcome = group.id, said.outcome
        if outcome == "lost":
            raise UnavailableError("the store lost a group's data on its way; send it again")
        if outcome == "unstaged":
            APPENDS.labels("full").inc()
            oldest, stored = said.numbers
            await self._fullness.met(id_.step, oldest=oldest, stored=stored)
            raise FullError("the store is out of memory")
        APPENDS.labels(outcome).inc()
        self._fullness.over()
        refuse_fenced("incarnation", id_.incarnation, outcome, said.numbers)
        if outcome == "duplicate":
            return False
        BYTES.inc(said.size)
        for samples, length in zip(group.policies, said.numbers, strict=True):
            LAG.labels(samples.head.policy).set(length)
        return True

    def _refusal(self, group: WireGroup) -> FlexMARLError | None:
        """Why it may not be stored."""
        try:
            check_groups([group], self._policies, self._max_staleness)
        except (InvalidRequestError, StalePolicyError) as error:
            _told(group_name(group.id), error)
            return error
        return None

    async def lease(self, wanted: Wanted, *, wait: float = 0.0, lacking: int = 0) -> bytes:
        """Groups in order of arrival, as a LeaseResponse.

        Waits for the first, and when it has just begun to wait for those that follow at its heels,
        unless as many as the caller is `lacking` are there. After `wait` seconds without any the
        answer is empty.
        """
        self._known(wanted.policy)
        _check_counters(epoch=wanted.epoch, step=wanted.step)
        check_cursor(wanted.cursor)
        return await self._handout.lease(wanted, wait=wait, lacking=lacking)

    async def commit(self, policy: str, epoch: int, step: int, *, keep: int = 0) -> int:
        """Acknowledge the policy's groups of the step; how many were deleted: 0 when done before.

        The groups of the last `keep` steps, this one included, can still be leased.
        """
        self._known(policy)
        _check_counters(epoch=epoch, step=step)
        keys = self._keys
        async with translated():
            outcome, *rest = await self._commit(
                [keys.epoch(policy), keys.stream(policy), keys.kept(policy)],
                [epoch, step, keep, keys.entries(policy, step).removesuffix(str(step))],
            )
        refuse_fenced("epoch", epoch, outcome, rest)
        deleted, left = rest
        LAG.labels(policy).set(left)
        return int(deleted)

    async def stored(self, step: int) -> StoredStep:
        """Indexes that every policy has or had; of a closed step none is remembered."""
        _check_counters(step=step)
        async with translated(), self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._keys.closed)
            pipe.hgetall(self._keys.stored(step))
            pipe.hgetall(self._keys.notes(step))
            closed, indexes, notes = await pipe.execute()
        return StoredStep(
            indexes=sorted(int(index) for index, lost in indexes.items() if not lost),
            closed=closed is not None and step <= int(closed),
            notes={int(index): note for index, note in notes.items()},
            full=await self._fullness.full(),
        )

    async def close_step(self, incarnation: int, step: int) -> None:
        """Forget the identities of this step and earlier ones; appends to them are duplicates."""
        _check_counters(incarnation=incarnation, step=step)
        keys = self._keys
        async with translated():
            outcome, *rest = await self._close(
                [keys.incarnation, keys.closed, keys.steps, *map(keys.stream, self._order)],
                [incarnation, step, keys.prefix, *self._order],
            )
        refuse_fenced("incarnation", incarnation, outcome, rest)
        if purged := rest[0]:
            PURGED.inc(purged)
            log.warning("closed step had entries that nobody committed", step=step, entries=purged)

    async def forget(self) -> None:
        """Remove whatever the server keeps of the job; nobody may write for it any more."""
        await self.roll_back(await self.take_incarnation(), 0)
        keys = self._keys
        own = (keys.epoch, keys.stream, keys.dead, keys.kept)
        async with translated():
            await self._redis.unlink(
                *(keys.incarnation, keys.state, keys.closed, keys.steps),
                *(name(policy) for name in own for policy in self._order),
            )

    async def get_state(self) -> dict[str, str]:
        async with translated():
            fields = await self._redis.hgetall(self._keys.state)
        return {_text(name): _text(value) for name, value in fields.items()}

    async def put_state(self, incarnation: int, fields: Mapping[str, str]) -> None:
        """Set these fields; others keep their values."""
        _check_counters(incarnation=incarnation)
        flat = [part for pair in fields.items() for part in pair]
        async with translated():
            outcome, *rest = await self._put_state(
                [self._keys.incarnation, self._keys.state], [incarnation, *flat]
            )
        refuse_fenced("incarnation", incarnation, outcome, rest)

    def _known(self, policy: str) -> None:
        if policy not in self._policies:
            raise InvalidRequestError(f"policy {policy!r} is none of {self._order}")


def _read(request: Part) -> WireGroup:
    try:
        return read_group(request)
    except DecodeError as error:
        refusal = InvalidRequestError(f"this is no group: {error}")
        _told("unreadable", refusal)
        raise refusal from error


def _told(group: str, refusal: FlexMARLError) -> None:
    APPENDS.labels("refused").inc()
    log.warning("group refused", group=group, reason=str(refusal))


def _moments(played: Sequence[float], groups: int) -> list[float | None]:
    """Those that may be: none is known of a group that is yet to be played."""
    latest = now()
    known = played if len(played) == groups else [math.nan] * groups
    return [min(moment, latest) if math.isfinite(moment) else None for moment in known]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _check_counters(**counters: int) -> None:
    for name, value in counters.items():
        if value >= MAX_COUNTER or (value == 0 and name != "step"):
            raise InvalidRequestError(f"{name} is {value}")
