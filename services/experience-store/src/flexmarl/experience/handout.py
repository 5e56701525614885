"""Handing out groups to readers that wait for them.

An answer costs as much as a dozen small groups do, so groups that come at each other's heels go
together; but once all are there that a reader is waiting for they go at once. Where nothing new can
be, the server is not asked.
"""

from __future__ import annotations

from dataclasses import replace

from flexmarl.contracts.v1 import experience_pb2 as pb
from flexmarl.experience.arrivals import Arrivals
from flexmarl.experience.connection import translated
from flexmarl.experience.fresh import Fresh
from flexmarl.experience.leases import Leased, Leases, Place, Wanted
from flexmarl.experience.moments import now, stamp
from flexmarl.experience.wire import lease_message

GATHER_SECONDS = 0.015
"""At least, between a reader's question and the answer, while more may come that it lacks."""


class Handout:
    def __init__(self, leases: Leases, arrivals: Arrivals, fresh: Fresh) -> None:
        self._leases, self._arrivals, self._fresh = leases, arrivals, fresh
        self._exhausted: dict[str, tuple[Place, int]] = {}
        """By policy: behind what the last reader left nothing, and how many arrivals there had
        been."""

    async def lease(self, wanted: Wanted, *, wait: float, lacking: int) -> bytes:
        """A LeaseResponse, see `Store.lease`."""
        arrivals = self._arrivals
        started = ready = now()
        known = wanted.place, arrivals.count
        look = bool(wanted.indexes) or self._exhausted.get(wanted.policy) != known
        while True:
            arrival, count = arrivals.next(), arrivals.count
            left = started + wait - now()
            if look or left <= 0 or arrivals.released:
                async with translated():
                    lease = await self._leases.read(wanted)
                wanted, left = replace(wanted, cursor=lease.cursor), started + wait - now()
                if not (lease.more or wanted.indexes):
                    self._exhausted[wanted.policy] = wanted.place, count
                if lease.groups or left <= 0 or arrivals.released:
                    return _message(lease, started, ready)
            await arrivals.wait(arrival, left)
            until = started + min(wait, GATHER_SECONDS)
            await self._gather(wanted.policy, wanted.step, lacking, until)
            ready, look = now(), True

    async def _gather(self, policy: str, step: int, lacking: int, until: float) -> None:
        """Return then, or once all are here that the reader is `lacking`."""
        arrivals = self._arrivals
        while (left := until - now()) > 0 and not arrivals.released:
            arrival = arrivals.next()
            if lacking and self._fresh.count(policy, step) >= lacking:
                return
            await arrivals.wait(arrival, left)


def _message(lease: Leased, started: float, ready: float) -> bytes:
    """`ready`: when it was known that there might be something."""
    rest = pb.LeaseResponse(
        cursor=lease.cursor,
        waited=ready - started,
        played=(ready if kept.played is None else kept.played for kept in lease.groups),
        clock=stamp(started),
    )
    return lease_message((kept.data for kept in lease.groups), rest)
