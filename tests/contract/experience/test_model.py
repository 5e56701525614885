"""The store against a model of it: whatever happens in whatever order, both say the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.contract.experience.conftest import Server
from tests.contract.experience.filling import epoch_of, leased
from tests.unit.experience.groups import POLICIES, append, sent

from flexmarl.experience.samples import GroupId
from flexmarl.experience.store import Store
from flexmarl.runtime.errors import FencedError

T = TypeVar("T")
STEPS = st.integers(0, 3)
INDEXES = st.integers(0, 4)
AGE = st.sampled_from([0, 0, 0, 1])
"""How far behind the latest incarnation or epoch the caller is."""
POLICY = st.sampled_from(POLICIES)


async def opened(url: str, uid: str) -> Store:
    """A store belongs to the event loop that it is made in."""
    return await Store(url, uid, POLICIES).__aenter__()


class StoreMachine(RuleBasedStateMachine):
    url: ClassVar[str]
    _numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.run(opened(self.url, f"model/{next(self._numbers)}"))
        self.incarnation = self.run(self.store.take_incarnation())
        self.epochs = {policy: self.run(epoch_of(self.store, policy)) for policy in POLICIES}
        self.known: dict[int, set[int]] = {}
        self.entries: dict[tuple[str, int], list[int]] = {}
        self.closed = -1

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.run(self.store.__aexit__(None, None, None))
        self.runner.close()

    @rule(step=STEPS, index=INDEXES, age=AGE)
    def append(self, step: int, index: int, age: int) -> None:
        if not (incarnation := self.incarnation - age):
            return
        call = append(self.store, sent(GroupId(incarnation, step, index), episodes=1))
        if age:
            with pytest.raises(FencedError):
                self.run(call)
            return
        fresh = step > self.closed and index not in self.known.get(step, set())
        assert self.run(call) is fresh
        if fresh:
            self.known.setdefault(step, set()).add(index)
            for policy in POLICIES:
                self.entries.setdefault((policy, step), []).append(index)

    @rule(policy=POLICY, step=STEPS, age=AGE, at_once=st.integers(1, 3))
    def lease(self, policy: str, step: int, age: int, at_once: int) -> None:
        """From the start to the end, a few groups at a time."""
        if not (epoch := self.epochs[policy] - age):
            return
        if age:
            with pytest.raises(FencedError):
                self.run(leased(self.store, policy, epoch, step))
            return
        found, cursor = list[int](), ""
        while True:
            lease = self.run(
                leased(self.store, policy, epoch, step, cursor=cursor, max_groups=at_once)
            )
            if not lease.groups:
                break
            found += [group.id.index for group in lease.groups]
            cursor = lease.cursor
        assert found == self.entries.get((policy, step), [])

    @rule(policy=POLICY, step=STEPS, age=AGE)
    def commit(self, policy: str, step: int, age: int) -> None:
        if not (epoch := self.epochs[policy] - age):
            return
        call = self.store.commit(policy, epoch, step)
        if age:
            with pytest.raises(FencedError):
                self.run(call)
            return
        assert self.run(call) == len(self.entries.pop((policy, step), []))

    @rule(step=STEPS)
    def close(self, step: int) -> None:
        self.run(self.store.close_step(self.incarnation, step))
        self.closed = max(self.closed, step)
        self.forget(lambda each: each <= step)

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
        self.forget(lambda each: each >= step)

    def forget(self, chosen: Any) -> None:
        self.known = {step: known for step, known in self.known.items() if not chosen(step)}
        self.entries = {key: kept for key, kept in self.entries.items() if not chosen(key[1])}

    @invariant()
    def both_know_the_same_groups(self) -> None:
        for step in range(4):
            stored = self.run(self.store.stored(step))
            assert stored.indexes == sorted(self.known.get(step, set()))
            assert stored.closed == (step <= self.closed)


def test_the_store_is_its_model(server: Server) -> None:
    StoreMachine.url = server.url
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
