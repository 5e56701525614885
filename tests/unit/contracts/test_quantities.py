"""Amounts, and what a trainer's pod must be allowed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.contracts.jobs import good

from flexmarl.contracts.quantities import mebibytes, quantity
from flexmarl.contracts.rules import check


@pytest.mark.parametrize(
    ("text", "amount"),
    [("3", 3), ("100m", 0.1), ("1.5Gi", 1.5 * 2**30), ("2k", 2000), ("64M", 64e6), ("5n", 5e-9),
     ("2E", 2e18), ("1Ei", 2.0**60), ("1e3", 1000), ("1E3", 1000)],
)  # fmt: skip
def test_amounts_are_read_as_kubernetes_writes_them(text: str, amount: float) -> None:
    assert quantity(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "Gi", "1im", "one", "2Qi"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"could not convert|is no amount"):
        quantity(text)


def test_bytes_are_told_in_whole_mebibytes() -> None:
    assert [mebibytes(count) for count in (1, 2**20, 2**20 + 1)] == ["1Mi", "1Mi", "2Mi"]


def trained(memory: dict[str, Any], shm: str | None = None) -> list[str]:
    """What is wrong with a job whose trainers have these resources."""
    document = good()
    container = {"name": "main", "resources": memory}
    template = {"spec": {"containers": [{"name": "beside"}, container]}}
    document["spec"]["roles"] = {"trainer": {"template": template}}
    if shm:
        document["spec"]["shm"] = {"size": shm}
    return [str(problem) for problem in check(document) if not problem.warning]


def test_a_trainer_may_use_no_less_than_is_asked_for_it() -> None:
    (said,) = trained({"limits": {"memory": "1Gi"}})
    assert said.startswith(
        "spec.roles.trainer.template.spec.containers[1].resources.limits.memory: "
        '"1Gi", but a trainer asks for 1536Mi'
    )
    assert trained({"limits": {"memory": "2Gi"}}, shm="4Gi")
    assert not trained({"limits": {"memory": "1Gi"}}, shm="64Mi")
    assert not trained({"limits": {"memory": "1536Mi"}})
    assert not trained({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}})
    assert not trained({"limits": {"memory": "much"}})
    assert not trained({})
