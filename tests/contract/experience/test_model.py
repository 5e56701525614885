"""The store against a model of it: whatever happens in whatever order, both say the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, leased
from tests.unit.experience.groups import POLICIES, append, sent

from flexmarl.experience.entries import Name
from flexmarl.experience.keys import Keys
from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError

T = TypeVar("T")
STEPS = st.integers(0, 2)
INDEXES = st.integers(0, 2)
AGE = st.sampled_from([0, 0, 0, 1])
"""How far behind the latest incarnation or epoch the caller is."""
POLICY = st.sampled_from(POLICIES)


async def opened(url: str, uid: str) -> Store:
    """A store belongs to the event loop that it is made in."""
    return await Store(url, uid, POLICIES).__aenter__()


@dataclass(eq=False)
class Entry:
    """A group in the stream of one policy."""

    index: int
    fresh: bool = True
    """The instance that stored it has its data still."""
    damaged: bool = False
    """What the server has of it cannot be read."""


class StoreMachine(RuleBasedStateMachine):
    """One instance stores, leases and commits; another one leases too and never saw what came."""

    url: ClassVar[str]
    _numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.uid = f"model/{next(self._numbers)}"
        self.store = self.run(opened(self.url, self.uid))
        self.another = self.run(opened(self.url, self.uid))
        self.incarnation = self.run(self.store.take_incarnation())
        self.epochs = {policy: self.run(epoch_of(self.store, policy)) for policy in POLICIES}
        self.known: dict[int, dict[int, set[str]]] = {}
        """Step -> index -> policies that lost it."""
        self.notes: dict[int, dict[int, bytes]] = {}
        self.entries: dict[tuple[str, int], list[Entry]] = {}
        self.kept: dict[str, set[int]] = {policy: set() for policy in POLICIES}
        self.buried = dict.fromkeys(POLICIES, 0)
        self.closed = -1

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        for store in (self.store, self.another):
            self.run(store.__aexit__(None, None, None))
        self.runner.close()

    @initialize()
    def fill(self) -> None:
        for step, index in itertools.product(range(2), range(3)):
            self.append(step, index, 0, b"0" if index else b"")

    @rule(step=STEPS, index=INDEXES, age=AGE, note=st.sampled_from([b"", b"1", b"2"]))
    def append(self, step: int, index: int, age: int, note: bytes) -> None:
        if not (incarnation := self.incarnation - age):
            return
        call = append(self.store, sent(GroupId(incarnation, step, index), episodes=1, note=note))
        if age:
            with pytest.raises(FencedError):
                self.run(call)
            return
        lost = self.known.get(step, {}).get(index)
        wanted = set(POLICIES) if lost is None else lost
        if step <= self.closed:
            wanted = set()
        assert self.run(call) is bool(wanted)
        if not wanted:
            return
        self.known.setdefault(step, {})[index] = set()
        if note and lost is None:  # the first one may have been told already
            self.notes.setdefault(step, {})[index] = note
        for policy in wanted:
            self.entries.setdefault((policy, step), []).append(Entry(index))

    @rule(
        policy=POLICY,
        step=STEPS,
        age=AGE,
        at_once=st.integers(1, 3),
        another=st.booleans(),
        indexes=st.sampled_from([(), (), (0, 2)]),
    )
    def lease(  # noqa: PLR0917
        self,
        policy: str,
        step: int,
        age: int,
        at_once: int,
        another: bool,
        indexes: tuple[int, ...],
    ) -> None:
        """From the start to the end, a few groups at a time."""
        if not (epoch := self.epochs[policy] - age):
            return
        store = self.another if another else self.store
        how: dict[str, Any] = {"limit": at_once, "indexes": indexes}
        if age:
            with pytest.raises(FencedError):
                self.run(leased(store, policy, epoch, step, **how))
            return
        found, cursor = list[int](), ""
        while True:
            lease = self.run(leased(store, policy, epoch, step, cursor=cursor, **how))
            found += [group.id.index for group in lease.groups]
            if lease.cursor == cursor:
                break
            cursor = lease.cursor
        assert found == self.read(policy, step, another, indexes)

    def read(self, policy: str, step: int, another: bool, indexes: tuple[int, ...]) -> list[int]:
        """What a lease finds; entries that it cannot read are buried."""
        entries = self.entries.get((policy, step), [])
        asked = [entry for entry in entries if not indexes or entry.index in indexes]
        for entry in asked:
            here = entry.fresh and not another
            entry.fresh &= another
            if entry.damaged and not here:
                entries.remove(entry)
                self.buried[policy] += 1
                if entry.index in self.known.get(step, {}):
                    self.known[step][entry.index].add(policy)
        return [entry.index for entry in asked if entry in entries]

    @rule(policy=POLICY, which=st.integers(0, 8), gone=st.booleans(), seen=st.booleans())
    def damage(self, policy: str, which: int, gone: bool, seen: bool) -> None:
        """The server loses what it has of an entry, or has other bytes there; `seen` at once."""
        there = [key for key, entries in self.entries.items() if key[0] == policy and entries]
        if not there:
            return
        _, step = there[which % len(there)]
        entries = self.entries[policy, step]
        keys, entry = Keys(self.uid), entries[which % len(entries)]
        with redis.Redis.from_url(self.url) as client:
            names = map(Name.parse, client.zrange(keys.entries(policy, step), 0, -1))
            [name] = [name for name in names if name.index == entry.index]
            data = keys.data(policy, name.stream_id)
            if gone:
                client.delete(data)
            elif client.exists(data):
                client.setrange(data, 7, b"\xff garbage")
        entry.damaged = True
        if seen:
            self.lease(policy, step, 0, 1, True, ())

    @rule(policy=POLICY, step=STEPS, age=AGE, keep=st.sampled_from([0, 0, 1, 2]))
    def commit(self, policy: str, step: int, age: int, keep: int) -> None:
        if not (epoch := self.epochs[policy] - age):
            return
        call = self.store.commit(policy, epoch, step, keep=keep)
        if age:
            with pytest.raises(FencedError):
                self.run(call)
            return
        kept = self.kept[policy]
        if self.entries.get((policy, step)):
            kept.add(step)
        gone = {each for each in kept if each <= step - keep}
        kept -= gone
        entries = [self.entries.pop((policy, each), []) for each in gone]
        assert self.run(call) == sum(map(len, entries))

    @rule(step=STEPS)
    def close(self, step: int) -> None:
        self.run(self.store.close_step(self.incarnation, step))
        self.closed = max(self.closed, step)
        self.forget(lambda each: each <= step, spare=self.kept)

    @rule(policy=POLICY)
    def rebind(self, policy: str) -> None:
        self.epochs[policy] += 1
        assert self.run(epoch_of(self.store, policy)) == self.epochs[policy]

    @rule()
    def restart(self) -> None:
        self.incarnation += 1
        assert self.run(self.store.take_incarnation()) == self.incarnation

    @rule(step=STEPS)
    def roll_back(self, step: int) -> None:
        self.run(self.store.roll_back(self.incarnation, step))
        self.closed = min(self.closed, step - 1)
        self.forget(lambda each: each >= step, spare={policy: set() for policy in POLICIES})
        for kept in self.kept.values():
            kept -= {each for each in kept if each >= step}

    def forget(self, chosen: Callable[[int], bool], spare: dict[str, set[int]]) -> None:
        self.known = {step: known for step, known in self.known.items() if not chosen(step)}
        self.notes = {step: notes for step, notes in self.notes.items() if not chosen(step)}
        self.entries = {
            (policy, step): entries
            for (policy, step), entries in self.entries.items()
            if not chosen(step) or step in spare[policy]
        }

    @invariant()
    def both_know_the_same_groups(self) -> None:
        for step in range(4):
            stored = self.run(self.store.stored(step))
            known = self.known.get(step, {})
            assert stored.indexes == sorted(index for index, lost in known.items() if not lost)
            assert stored.closed == (step <= self.closed)
            assert stored.notes == self.notes.get(step, {})

    @invariant()
    def whatever_could_not_be_read_is_a_dead_letter(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            for policy, buried in self.buried.items():
                assert client.xlen(Keys(self.uid).dead(policy)) == buried


def test_the_store_is_its_model(server: Server) -> None:
    StoreMachine.url = server.url
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
