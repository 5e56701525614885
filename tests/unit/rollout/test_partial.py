from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.v1 import engine_pb2
from flexmarl.experience.samples import VersionSpan
from flexmarl.rollout.partial import BadAnswerError, Part, Partial, Versions, checked
from flexmarl.runtime.errors import StalePolicyError

END = 99


def result(
    ids: list[int],
    spans: list[tuple[int, int, int]],
    logprobs: list[float] | None = None,
    reason: str = "stop",
) -> engine_pb2.TurnResult:
    answer = engine_pb2.TurnResult(
        token_ids=np.asarray(ids, "<i4").tobytes(),
        logprobs=np.asarray([-0.5] * len(ids) if logprobs is None else logprobs, "<f4").tobytes(),
        finish_reason=reason,
    )
    for version, start, end in spans:
        answer.versions.add(version=version, start=start, end=end)
    return answer


def part(ids: list[int], version: int, reason: str = "abort") -> Part:
    spans = [(version, 0, len(ids))] if ids else []
    return checked(result(ids, spans, reason=reason), Versions(0, 9))


PARTS = st.lists(st.tuples(st.lists(st.integers(0, END - 1), max_size=5), st.integers(0, 9)))


@given(PARTS, st.sampled_from(["stop", "length"]))
def test_parts_laid_end_to_end_are_the_turn(parts: list[tuple[list[int], int]], last: str) -> None:
    whole = Partial(1000, (END,))
    expected: list[tuple[int, int]] = []
    for ids, version in parts:
        whole.add(part(ids, version))
        expected += [(token, version) for token in ids]
        assert whole.reason == ""
        assert whole.left == 1000 - len(expected)
    whole.add(part([7], 9, last))
    expected.append((7, 9))
    assert whole.reason == last
    assert whole.ids.tolist() == [token for token, _ in expected]
    assert len(whole.logprobs) == len(expected)
    versions = [span.version for span in whole.spans for _ in range(span.start, span.end)]
    assert versions == [version for _, version in expected]
    assert whole.spans[0].start == 0
    for before, after in zip(whole.spans, whole.spans[1:], strict=False):
        assert before.end == after.start
        assert before.version != after.version


def test_a_turn_cut_right_after_its_end_is_over() -> None:
    whole = Partial(10, (END,))
    whole.add(part([1, END], 1))
    assert whole.reason == "stop"


def test_a_turn_cut_at_its_last_token_is_over() -> None:
    whole = Partial(3, (END,))
    whole.add(part([1, 2], 1))
    assert (whole.reason, whole.left) == ("", 1)
    whole.add(part([3], 2))
    assert whole.reason == "length"
    assert whole.spans == (VersionSpan(1, 0, 2), VersionSpan(2, 2, 3))


def test_a_cut_before_the_first_token_changes_nothing() -> None:
    whole = Partial(3, (END,))
    whole.add(part([], 1))
    assert (whole.length, whole.parts, whole.reason) == (0, 0, "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (result([1, 2], [(1, 0, 2)], [-0.5]), "2 ids, 1 log-probs"),
        (result([1, 2], [(1, 0, 2)], [-0.5, float("nan")]), "not finite"),
        (result([1, 2], [(1, 0, 2)], [-0.5, float("-inf")]), "not finite"),
        (result([1, 2], [(1, 0, 2)], [-0.5, 0.1]), r"log-prob 0\.1"),
        (result([1, 2], [(1, 0, 2)], [-0.5, -1e-40]), r"log-prob -[\d.]+e-4[01]"),
        (result([-1], [(1, 0, 1)]), "token -1"),
        (result([1, 1 << 24], [(1, 0, 2)]), "token 16777216"),
        (result([1], [(1, 0, 1)], reason="eos"), "finish reason 'eos'"),
        (result([1], [(1, 0, 1)], reason=""), "finish reason ''"),
        (result([1, 2], [(1, 0, 1)]), "cover 1 of 2"),
        (result([1, 2], []), "cover 0 of 2"),
        (result([1, 2], [(1, 1, 2), (1, 0, 1)]), r"span \[1, 2\) after 0"),
        (result([1, 2], [(1, 0, 2), (1, 2, 2)]), r"span \[2, 2\) after 2"),
    ],
)
def test_an_answer_that_no_engine_may_give_is_named(
    answer: engine_pb2.TurnResult, words: str
) -> None:
    with pytest.raises(BadAnswerError, match=words):
        checked(answer, Versions(1, 1))


@pytest.mark.parametrize(
    ("version", "versions", "words"),
    [
        (2, Versions(1, 1), "from version 2, wanted 1$"),
        (0, Versions(1, 3), "from version 0, wanted 1 to 3"),
        (4, Versions(1, 3), "from version 4, wanted 1 to 3"),
    ],
)
def test_tokens_of_versions_outside_the_route_are_stale(
    version: int, versions: Versions, words: str
) -> None:
    with pytest.raises(StalePolicyError, match=words):
        checked(result([1], [(version, 0, 1)]), versions)


def test_ids_beyond_the_model_s_vocabulary_are_no_answer() -> None:
    checked(result([0, 9], [(1, 0, 2)]), Versions(1, 1), 10)
    with pytest.raises(BadAnswerError, match="token 10, of a vocabulary of 10"):
        checked(result([0, 10], [(1, 0, 2)]), Versions(1, 1), 10)
    checked(result([], []), Versions(1, 1), 10)
