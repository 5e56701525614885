"""What a job's records lack of what its workflow and reward ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexmarl.contracts.job import RewardSpec, WorkflowSpec
from flexmarl.rollout.checks import JobCode, check_code


@pytest.mark.parametrize(
    ("workflow", "reward", "found"),
    [
        ({"name": "single", "config": {"prompt": "{qestion}"}},
         {"name": "exact-match", "config": {"answer": "question"}},
         ['config.prompt: record 1 of spec.data has no field "qestion"; there is question or '
          'answer; did you mean "question"?']),
        ({"name": "single"}, {"name": "exact-match", "config": {"answer": "anser"}},
         ['reward.config.answer: record 1 of spec.data has no field "anser"']),
        ({"name": "single"}, {"name": "math"},
         ['reward.config.answer: record 2 of spec.data has nothing in its field "answer"']),
        ({"name": "single"}, {"name": "gym"},
         ['"answer"', '"metadata"', '"gym"']),
    ],
)  # fmt: skip
def test_a_field_that_records_lack_is_found(
    tmp_path: Path, workflow: dict[str, Any], reward: dict[str, Any], found: list[str]
) -> None:
    records: list[dict[str, Any]] = [
        {"question": "1+1", "answer": "2"},
        {"question": "1+2", "answer": None},
    ]
    code = JobCode(
        WorkflowSpec(**workflow), RewardSpec(**reward), None, ["a"], records={"spec.data": records}
    )
    problems = [str(problem) for problem in check_code(code, tmp_path)]
    assert len(problems) == len(found)
    for problem, words in zip(problems, found, strict=True):
        assert words in problem


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (["a"], ""),
        ("a", ""),
        (["a", "aa"], 'record 1 of spec.data names "aa", which is no agent; a; did you mean "a"?'),
        ([], "has an empty list in its field"),
        (3, "has 3 in its field"),
        ([["a"]], "names a list of 1, which is no agent"),
        (None, "has nothing in its field"),
    ],
)
def test_participants_that_are_no_agents_are_found(tmp_path: Path, needs: Any, words: str) -> None:
    workflow = WorkflowSpec(name="single", participants="needs")
    records = {"spec.data": [{"question": "1", "answer": "1", "needs": needs}]}
    code = JobCode(workflow, RewardSpec(name="exact-match"), None, ["a"], records=records)
    problems = [str(problem) for problem in check_code(code, tmp_path)]
    assert len(problems) == bool(words)
    assert all(words in problem for problem in problems)


def test_a_task_without_the_column_of_participants_is_found(tmp_path: Path) -> None:
    workflow = WorkflowSpec(name="single", participants="need")
    records = {"spec.data": [{"question": "1", "answer": "1", "needs": ["a"]}]}
    code = JobCode(workflow, RewardSpec(name="exact-match"), None, ["a"], records=records)
    (problem,) = check_code(code, tmp_path)
    assert str(problem) == (
        'spec.workflow.participants: record 1 of spec.data has no field "need"; '
        'there is question, answer or needs; did you mean "needs"?'
    )
