import json

import pytest

from flexmarl.bench.measure import alone, alternate, as_json, paired


def test_a_ratio_is_the_median_over_pairs_and_the_spread_their_range() -> None:
    measure = paired("tokens", [10, 30, 20], [20, 20, 20], "tokens/s", goal=0.9)
    assert (measure.value, measure.baseline, measure.ratio) == (20, 20, 1.0)
    assert measure.spread == (0.5, 1.5)
    assert measure.met is True


def test_a_missed_goal_is_said() -> None:
    assert paired("tokens", [10], [20], "tokens/s", goal=0.9).met is False
    assert alone("start", [16.0, 17.0], "s", goal=15).met is False
    assert alone("start", [14.0], "s", goal=15).met is True
    assert alone("start", [14.0], "s").met is None


@pytest.mark.parametrize(("values", "baselines"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_rounds_that_do_not_pair_up_are_refused(
    values: list[float], baselines: list[float]
) -> None:
    with pytest.raises(ValueError, match="tokens"):
        paired("tokens", values, baselines, "tokens/s")


async def test_both_sides_run_in_turn_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    async def subject() -> float:
        order.append("a")
        return len(order)

    async def baseline() -> float:
        order.append("b")
        return len(order)

    assert await alternate(2, subject, baseline) == ([3, 5], [4, 6])
    assert "".join(order) == "ababab"


def test_the_json_form_has_the_agreed_keys() -> None:
    said = json.loads(as_json("rollout", [paired("tokens", [1.0], [2.0], "tokens/s", 0.5)]))
    assert set(said) == {"bench", "machine", "version", "measures"}
    keys = {"name", "value", "unit", "baseline", "ratio", "spread", "goal", "met"}
    assert set(said["measures"][0]) == keys
    assert said["measures"][0]["met"] is True
