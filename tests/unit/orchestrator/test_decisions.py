"""Who trains, who plays and what is issued: functions of what is, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.orchestrator.balance import choose_worker
from flexmarl.orchestrator.bind import homes, next_policy
from flexmarl.orchestrator.issue import Fault, decide, fault, pause
from flexmarl.rollout.engines.scheduler import EngineFailedError
from flexmarl.rollout.partial import BadAnswerError
from flexmarl.rollout.rewards.errors import RewardError
from flexmarl.runtime import errors

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@given(NAMES, st.integers(1, 10))
def test_every_policy_has_one_home_and_slots_differ_by_one_at_most(
    policies: list[str], slots: int
) -> None:
    spread = homes(policies, [None] * slots)
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


PLACES = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9)))


@given(
    PLACES,
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 9)), st.integers(0, 5)),
    st.integers(1, 4),
)
def test_every_waiting_group_is_issued_in_order_or_given_up(
    waiting: set[tuple[int, int]], failures: dict[tuple[int, int], int], tries: int
) -> None:
    issue = decide(waiting, failures, tries=tries)
    assert list(issue.hopeless) == sorted(g for g in waiting if failures.get(g, 0) >= tries)
    assert list(issue.go) == sorted(waiting - set(issue.hopeless))


@given(st.integers(1, 20), st.data())
def test_a_step_ends_whatever_fails_how_often(total: int, data: st.DataObject) -> None:
    waiting = {(0, index) for index in range(total)}
    failures: dict[tuple[int, int], int] = {}
    given_up: set[tuple[int, int]] = set()
    for _ in range(total * 3 * 2):
        issue = decide(waiting, failures, tries=3)
        if not issue.go and not issue.hopeless:
            break
        given_up.update(issue.hopeless)
        waiting.difference_update(issue.hopeless)
        for group in issue.go:
            if data.draw(st.booleans()):
                waiting.discard(group)
            else:
                failures[group] = failures.get(group, 0) + 1
    assert not waiting
    assert given_up == {group for group, count in failures.items() if count >= 3}


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


def test_of_our_own_errors_only_those_end_a_job_that_say_so() -> None:
    own: set[type[errors.FlexMARLError]] = {BadAnswerError, EngineFailedError, RewardError}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.FlexMARLError):
            own.add(kind)
    fatal = {kind for kind in own if fault(kind.code.name) is Fault.FATAL}
    assert fatal == {errors.JobFailedError, errors.UnauthenticatedError}


@given(st.integers(1, 10_000))
def test_pauses_grow_and_stay_short(attempt: int) -> None:
    assert 0 < pause(attempt) <= pause(attempt + 1) <= 2
