"""Who trains, who plays and what is issued: functions of what is, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.orchestrator.balance import choose_worker
from flexmarl.orchestrator.bind import homes, next_policy
from flexmarl.orchestrator.issue import Fault, decide, fault, pause

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@given(NAMES, st.integers(1, 10))
def test_every_policy_has_one_home_and_slots_differ_by_one_at_most(
    policies: list[str], slots: int
) -> None:
    spread = homes(policies, slots)
    assert sorted(name for own in spread for name in own) == sorted(policies)
    sizes = [len(own) for own in spread]
    assert max(sizes) - min(sizes) <= 1


@given(
    NAMES,
    st.none() | st.sampled_from("abcdefgh"),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9)),
    st.sets(st.sampled_from("abcdefgh")),
)
def test_a_slot_takes_the_policy_with_most_waiting_work_and_keeps_its_own_among_equals(
    candidates: list[str], bound: str | None, waiting: dict[str, int], done: set[str]
) -> None:
    chosen = next_policy(candidates, bound, waiting, done)
    left = [name for name in candidates if name not in done]
    if chosen is None:
        assert not left
        return
    assert chosen in left
    most = max(waiting.get(name, 0) for name in left)
    assert waiting.get(chosen, 0) == most
    if bound in left and waiting.get(bound or "", 0) == most:
        assert chosen == bound


def test_taking_turns_ends_when_every_policy_had_its_step() -> None:
    done: set[str] = set()
    bound: str | None = "b"
    order = []
    while (bound := next_policy(["a", "b", "c"], bound, {}, done)) is not None:
        order.append(bound)
        done.add(bound)
    assert order == ["b", "a", "c"]


def test_the_least_busy_worker_plays_and_one_that_just_failed_only_if_alone() -> None:
    busy = {"a": 3, "b": 1, "c": 1}
    assert choose_worker(busy, set()) == "b"
    assert choose_worker(busy, {"b"}) == "c"
    assert choose_worker(busy, {"a", "b", "c"}) == "b"


INDEXES = st.sets(st.integers(0, 19))


@given(
    st.integers(0, 20),
    st.tuples(INDEXES, INDEXES),
    st.dictionaries(st.integers(0, 19), st.integers(0, 5)),
    st.integers(1, 4),
    st.integers(0, 25),
)
def test_an_index_is_issued_only_while_it_is_neither_done_nor_on_its_way(
    total: int,
    known: tuple[set[int], set[int]],
    failures: dict[int, int],
    tries: int,
    capacity: int,
) -> None:
    done, in_flight = known
    issue = decide(total, done, in_flight, failures, tries=tries, capacity=capacity)
    everything = [*issue.indexes, *issue.hopeless]
    assert len(set(everything)) == len(everything)
    assert not set(everything) & (done | in_flight)
    assert all(index < total for index in everything)
    assert all(failures.get(index, 0) >= tries for index in issue.hopeless)
    assert all(failures.get(index, 0) < tries for index in issue.indexes)
    assert len(issue.indexes) <= max(0, capacity - len(in_flight))


@given(st.integers(1, 20), st.integers(1, 7), st.data())
def test_a_step_ends_whatever_fails_how_often(
    total: int, capacity: int, data: st.DataObject
) -> None:
    done: set[int] = set()
    failures: dict[int, int] = {}
    given_up: set[int] = set()
    for _ in range(total * 3 * 2):
        issue = decide(total, done, set(), failures, tries=3, capacity=capacity)
        if not issue.indexes and not issue.hopeless:
            break
        given_up.update(issue.hopeless)
        done.update(issue.hopeless)
        for index in issue.indexes:
            if data.draw(st.booleans()):
                done.add(index)
            else:
                failures[index] = failures.get(index, 0) + 1
    assert done == set(range(total))
    assert given_up == {index for index, count in failures.items() if count >= 3}


def test_only_a_group_s_own_faults_are_counted_against_it() -> None:
    assert fault("UNAVAILABLE") is Fault.PEER
    assert fault("FAILED_PRECONDITION") is Fault.PEER
    assert fault("RESOURCE_EXHAUSTED") is Fault.PEER
    assert fault("UNKNOWN") is Fault.GROUP
    assert fault("DEADLINE_EXCEEDED") is Fault.GROUP
    assert fault("INVALID_ARGUMENT") is Fault.GROUP
    assert fault("ABORTED") is Fault.FENCED
    assert fault("INTERNAL", "the gap is too large") is Fault.FATAL
    assert fault("INTERNAL", "Received RST_STREAM with error code 2") is Fault.PEER


@given(st.integers(1, 10_000))
def test_pauses_grow_and_stay_short(attempt: int) -> None:
    assert 0 < pause(attempt) <= pause(attempt + 1) <= 2
