import copy
from typing import Any

import pytest

from flexmarl.contracts.overrides import apply_overrides

DATA: dict[str, Any] = {
    "spec": {
        "seed": 0,
        "agents": [{"name": "solver"}, {"name": "verifier", "sampling": {"topP": 1}}],
        "eval": None,
    }
}


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("spec.seed=7", ("spec", "seed"), 7),
        ("spec.name=a=b", ("spec", "name"), "a=b"),
        ("spec.seed=", ("spec", "seed"), None),
        ("spec.lr=1e-3", ("spec", "lr"), 0.001),
        ("spec.agents[1].policy=x", ("spec", "agents", 1, "policy"), "x"),
        ("spec.agents[solver].policy=x", ("spec", "agents", 0, "policy"), "x"),
        ("spec.agents[0].sampling.topP=0.5", ("spec", "agents", 0, "sampling", "topP"), 0.5),
        ("spec.eval.samples=2", ("spec", "eval", "samples"), 2),
        ("spec.eval={samples: 2}", ("spec", "eval"), {"samples": 2}),
        ("spec.agents[0]={name: a}", ("spec", "agents", 0), {"name": "a"}),
    ],
)
def test_an_override_sets_its_field(override: str, path: tuple[str | int, ...], value: Any) -> None:
    before = copy.deepcopy(DATA)
    result, origins, problems = apply_overrides(DATA, [override])
    assert problems == []
    assert origins == {path: f"--set {override}"}
    for part in path:
        result = result[part]
    assert result == value
    assert before == DATA


def test_later_overrides_win() -> None:
    result, _, _ = apply_overrides(DATA, ["spec.seed=1", "spec.seed=2"])
    assert result["spec"]["seed"] == 2


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("spec.seed", "not of the form path=value"),
        ("=3", "not of the form path=value"),
        (".spec=3", "is no path"),
        ("spec..seed=3", "is no path"),
        ("spec.agents[=3", "is no path"),
        ("spec.agents.policy=3", "policy follows a list; choose an item, as in [0].policy"),
        ("spec.agents[2].policy=3", "there is no item 2; the list has 2"),
        ("spec.agents[9999999].x=3", 'no item is named "9999999"'),
        ("spec.agents[slver].policy=3", 'there is solver or verifier; did you mean "solver"?'),
        ("spec.seed.x=3", "seed holds a single value"),
        ("spec[0]=3", "spec holds no list"),
        ("spec.seed=[", "not valid YAML"),
        ("spec.seed={a: 1, a: 2}", "duplicate key"),
    ],
)
def test_an_override_that_cannot_be_applied_is_named(override: str, says: str) -> None:
    result, origins, problems = apply_overrides(DATA, [override])
    assert (result, origins) == (DATA, {})
    assert [problem.place for problem in problems] == [f"--set {override}"]
    assert says in str(problems[0])
