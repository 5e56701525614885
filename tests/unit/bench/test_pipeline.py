"""What the benches make of a run's metrics."""

from typing import Any

import pytest

from flexmarl.bench import pipeline, scale


def line(*groups: tuple[float, float, float], time: float, seconds: float) -> dict[str, Any]:
    """Of groups that began, were played, and were done at these moments of the step."""
    policies = [f"p{number}" for number in range(pipeline.POLICIES)]
    tokens = dict.fromkeys(policies, 10)
    return {
        "time": time,
        "seconds": {"step": seconds},
        "policies": {name: {"train_seconds": seconds / 2} for name in policies},
        "groups": [
            {"began": began, "played": played, "seconds": done, "tokens": tokens}
            for began, played, done in groups
        ],
    }


def test_the_bound_knows_no_store() -> None:
    """Which took three seconds with each group; training one takes a second."""
    step = line((0.0, 1.0, 4.0), (0.0, 6.0, 9.0), time=112.0, seconds=12.0)
    cycle = pipeline.cycle(line(time=99.5, seconds=1.0), step, rate=10.0)
    assert cycle.seconds == 12.5
    assert cycle.bound == pytest.approx(0.5 + 6.0 + 1.0)
    assert cycle.rollout_idle == pytest.approx(1 - 6.5 / 12.5)


def test_groups_in_flight_are_counted_at_the_moment_of_most() -> None:
    step = line((0, 2, 9), (1, 3, 9), (2, 4, 9), (2.5, 3, 9), time=9, seconds=9)
    assert scale.most_at_once(step) == 3
