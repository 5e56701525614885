import pytest
from tests.unit.contracts.test_rules import found

STALE = "spec.pipeline.maxStaleness=1"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            [STALE, "spec.pipeline.deterministic=true"],
            "spec.pipeline.maxStaleness: 1 in a deterministic job; must be 0: with older versions "
            "allowed, which one samples a token depends on timing",
        ),
        (
            [
                "spec.pipeline.deterministic=true",
                "spec.policies[verifier].engine.transformers.threads=2",
            ],
            "spec.policies[1].engine.transformers.threads: 2 in a deterministic job; must be 1: "
            "how threads share a sum decides its rounding",
        ),
        (
            ["spec.pipeline.partialRollout=true"],
            "spec.pipeline.partialRollout: unfinished episodes cannot go on at a newer version; "
            "needs pipeline.maxStaleness above 0",
        ),
        (
            [STALE, "spec.pipeline.overlap=false"],
            "spec.pipeline.maxStaleness: groups of later steps are played while a step trains, but "
            "overlap is off; remove overlap: false, or set maxStaleness to 0",
        ),
        (
            ["spec.batch.updatesPerStep=3"],
            "spec.batch.updatesPerStep: 3 does not divide the step's 64 groups; "
            "each update takes equally many groups",
        ),
        (
            ["spec.batch.updatesPerStep=4", "spec.batch.microBatch=17"],
            "spec.batch.microBatch: 17 groups at once, but an update has 16; "
            "must be at most tasksPerStep / updatesPerStep",
        ),
        (
            ["spec.policies[solver].training.correctionCap=4"],
            "spec.policies[0].training.correctionCap: would be ignored; the correction is clip, "
            "which has no cap; remove it or name a correction",
        ),
        (
            ["spec.pipeline.filter={maxRefills: 2}"],
            "spec.pipeline.filter: says not what to keep; "
            "exactly one of name and entrypoint is needed",
        ),
        (
            ["spec.pipeline.difficulty={agent: solvr}"],
            'spec.pipeline.difficulty.agent: no agent is named "solvr"; '
            'there is solver, verifier or judge; did you mean "solver"?',
        ),
        (
            ["spec.pipeline.overlong={buffer: 2}"],
            'spec.pipeline.overlong.buffer: 2 tokens, but "solver" has 2 in all; '
            "must be below the maxTokens of every trained agent",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: list[str], says: str) -> None:
    assert found(*overrides) == [says]


@pytest.mark.parametrize(
    "overrides",
    [
        [STALE, "spec.policies[solver].training.correctionCap=4"],
        [STALE, "spec.pipeline.partialRollout=true"],
        ["spec.policies[solver].training.correction=tis"],
        ["spec.batch.updatesPerStep=4", "spec.batch.microBatch=16"],
        ["spec.pipeline.filter={name: contrast}", "spec.pipeline.overlong={buffer: 1}"],
        ["spec.pipeline.replay={share: 0.5}", "spec.pipeline.difficulty={agent: solver}"],
    ],
)
def test_what_fits_together_is_taken(overrides: list[str]) -> None:
    assert found(*overrides) == []


def test_an_algorithm_of_the_whole_batch_says_that_it_cannot_overlap() -> None:
    algorithm = "spec.policies[solver].training.algorithm=reinforce-pp"
    (said,) = found(algorithm, warnings=True)
    assert "overlap is off" in said
    assert found(algorithm, "spec.pipeline.overlap=false", warnings=True) == []


def test_clipping_stale_tokens_as_if_they_were_fresh_is_warned_of() -> None:
    (said,) = found(STALE, "spec.policies[solver].training.correction=clip", warnings=True)
    assert "older versions" in said
