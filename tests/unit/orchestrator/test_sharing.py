"""Engines of a pool: who serves whom, and how many there should be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.orchestrator.sharing import (
    Books,
    Rules,
    bind_engines,
    settled_scale,
    wanted_scale,
)

POLICIES = ("a", "b", "c", "d")
RULES = Rules(delta=5, hysteresis=10, cost=1, pace=1)
ENGINES = [f"e{number}" for number in range(7)]

backlogs = st.dictionaries(st.sampled_from(POLICIES), st.integers(0, 100))
pools = st.dictionaries(
    st.sampled_from(ENGINES), st.sampled_from((*POLICIES, "", "gone")), min_size=1
)
moments = st.floats(0, 1000)
books = st.builds(
    Books,
    st.dictionaries(st.sampled_from(ENGINES), moments),
    st.dictionaries(st.sampled_from(POLICIES), moments),
    st.none() | moments,
)


def busy(backlog: dict[str, int]) -> set[str]:
    return {policy for policy, count in backlog.items() if count}


@given(pools, backlogs, books)
def test_whoever_has_work_has_an_engine_when_there_are_enough(
    engines: dict[str, str], backlog: dict[str, int], known: Books
) -> None:
    moves, _ = bind_engines(POLICIES, engines, backlog, known, now=1000, rules=RULES)
    assert moves.keys() <= engines.keys()
    assert set(moves.values()) <= set(POLICIES)
    after = engines | moves
    assert set(after.values()) <= set(POLICIES)  # nobody is left idle
    if len(engines) >= len(busy(backlog)):
        assert busy(backlog) <= set(after.values())


@given(pools, backlogs, books)
def test_an_engine_is_not_taken_from_work_for_nothing(
    engines: dict[str, str], backlog: dict[str, int], known: Books
) -> None:
    moves, _ = bind_engines(POLICIES, engines, backlog, known, now=1000, rules=RULES)
    for engine, policy in moves.items():
        assert backlog.get(policy) or engines[engine] not in POLICIES
        assert policy != engines[engine]


@given(pools, backlogs)
def test_with_enough_engines_and_the_same_work_it_comes_to_rest(
    engines: dict[str, str], backlog: dict[str, int]
) -> None:
    known, last = Books(), 0
    for second in range(400):
        moves, known = bind_engines(POLICIES, engines, backlog, known, now=second, rules=RULES)
        engines = engines | moves
        last = second if moves else last
    assert last < 200 or len(engines) < len(busy(backlog))


@given(
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(POLICIES), st.integers(1, 100), min_size=4, max_size=4),
)
def test_with_fewer_engines_nobody_starves(count: int, backlog: dict[str, int]) -> None:
    """All have always work: each is served again before everybody else had more than one turn."""
    engines = dict.fromkeys(ENGINES[:count], "")
    known = Books()
    unserved = Counter(dict.fromkeys(POLICIES, 0))
    changes = 0
    for second in range(300):
        moves, known = bind_engines(POLICIES, engines, backlog, known, now=second, rules=RULES)
        engines |= moves
        changes += len(moves)
        for policy in POLICIES:
            unserved[policy] = 0 if policy in engines.values() else unserved[policy] + 1
            assert unserved[policy] <= (RULES.hysteresis + 1) * len(POLICIES)
    assert changes <= count + 300 / RULES.hysteresis * count


def test_a_difference_must_last_and_be_worth_it() -> None:
    engines = {"e0": "a", "e1": "a", "e2": "b"}
    backlog = {"a": 2, "b": 40}

    def decide(rules: Rules, known: Books, now: float) -> tuple[dict[str, str], Books]:
        return bind_engines(("a", "b"), engines, backlog, known, now=now, rules=rules)

    moves, known = decide(RULES, Books(), 0)
    assert moves == {}
    assert known.apart == 0
    moves, known = decide(RULES, known, 9.9)
    assert moves == {}
    dear = Rules(delta=5, hysteresis=10, cost=21, pace=1)  # 40 -> 20 turns, of a second each
    assert decide(dear, known, 10)[0] == {}
    moves, known = decide(RULES, known, 10)
    assert moves == {"e0": "b"}
    assert known.apart is None
    close = {"a": 8, "b": 9}
    assert bind_engines(("a", "b"), engines, close, Books(apart=0), now=99, rules=RULES)[0] == {}


def test_who_is_done_gives_at_once_and_gets_one_back_at_once() -> None:
    engines = {"e0": "a"}
    moves, known = bind_engines(("a", "b"), engines, {"a": 0, "b": 1}, Books(), now=0, rules=RULES)
    assert moves == {"e0": "b"}
    moves, _ = bind_engines(("a", "b"), moves, {"a": 1, "b": 0}, known, now=0.1, rules=RULES)
    assert moves == {"e0": "a"}


def test_an_engine_that_died_frees_its_binding() -> None:
    engines = {"e0": "a", "e1": "b", "e2": "b"}
    moves, known = bind_engines(("a", "b"), engines, {"a": 3, "b": 3}, Books(), now=0, rules=RULES)
    assert moves == {}
    del engines["e0"]
    moves, _ = bind_engines(("a", "b"), engines, {"a": 3, "b": 3}, known, now=0.2, rules=RULES)
    assert list(moves.values()) == ["a"]


@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 100))
def test_a_pool_wants_one_for_each_and_none_above_its_share(
    backlog: list[int], per_engine: int
) -> None:
    wanted = wanted_scale(backlog, per_engine)
    assert wanted >= max(1, sum(count > 0 for count in backlog))
    assert wanted * per_engine >= sum(backlog)
    assert wanted <= max(1, sum(count > 0 for count in backlog), -(-sum(backlog) // per_engine))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=60))
def test_a_pool_grows_at_once_and_shrinks_late(steps: list[tuple[int, int]]) -> None:
    now, everything = 0, []
    history: list[tuple[float, int]] = []
    for pause, count in steps:
        now += pause
        everything.append((now, count))
        settled, history = settled_scale([*history, (now, count)], now, 10)
        assert settled == max(one for moment, one in everything if now - moment <= 10)
        assert len(history) <= 9
