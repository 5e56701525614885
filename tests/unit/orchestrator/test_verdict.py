from flexmarl.contracts.pipeline import DifficultySpec
from flexmarl.orchestrator.verdict import Hardness


def agents(p0: float | None, p1: float | None) -> dict[str, dict[str, float | None]]:
    return {"p0": {"accuracy": p0}, "p1": {"accuracy": p1}}


def test_steps_in_which_everything_or_nothing_is_right_tell_nothing_of_hardness() -> None:
    hardness = Hardness(DifficultySpec())
    steps = [agents(0.0, 1.0), agents(None, 1.0), agents(0.25, 1.0), agents(0.0, 0.0)]
    assert [hardness.untold(step) for step in steps] == [1, 2, 0, 1]


def test_the_agent_that_counts_must_tell_it() -> None:
    hardness = Hardness(DifficultySpec(agent="p1"))
    assert [hardness.untold(agents(0.5, p1)) for p1 in (1.0, 1.0, 0.5)] == [1, 2, 0]


def test_where_tasks_are_not_chosen_nobody_asks() -> None:
    assert Hardness(None).untold(agents(0.0, 0.0)) == 0
