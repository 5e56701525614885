"""Tests on a real cluster: `make e2e` finds or starts one, builds and pushes images, runs these.

A test takes `cluster` (kubectl, helm), `images` (references by digest) and `namespace` (its own,
under the restricted Pod Security profile, gone when the test is over).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from .chart import Release
from .kube import Kubernetes
from .stage import Stage

WHERE = "FLEXMARL_E2E"
"""Set by `make e2e`: the kind of cluster, `node`, `kind` or `given`."""

if WHERE not in os.environ:  # plain pytest neither needs a cluster nor says that it skipped some
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside: runs in a thread from the session's start on")
    config.addinivalue_line("markers", "alone: begins when no other test runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("cluster")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Those that run beside are waited for when there is nothing else to do."""
    return 2 if item.get_closest_marker("alone") else 1 if item.get_closest_marker("beside") else 0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    stage = pyfuncitem.funcargs.get("stage")
    return True if isinstance(stage, Stage) and stage.result(pyfuncitem) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    arguments: Mapping[str, object] = getattr(item, "funcargs", {})
    if report.failed and report.when == "call" and "namespace" in arguments:
        found = Kubernetes().evidence(str(arguments["namespace"]))
        report.sections.append(("the namespace", found))
    return report


@pytest.fixture(scope="session")
def cluster() -> Kubernetes:
    found = Kubernetes()
    found.kubectl("get", "--raw", "/readyz")
    return found


@pytest.fixture(scope="session")
def images() -> Mapping[str, str]:
    """Image name -> what to name in a pod."""
    found: dict[str, str] = yaml.safe_load(Path(os.environ[f"{WHERE}_IMAGES"]).read_text())
    return found


@pytest.fixture(scope="session")
def namespaces(cluster: Kubernetes) -> Iterator[list[str]]:
    """Those that tests are done with: none may hang, whatever was in it."""
    left: list[str] = []
    yield left
    if left:
        names = [f"namespace/{name}" for name in left]
        cluster.kubectl("wait", "--for=delete", *names, "--timeout=60s", seconds=90)


@pytest.fixture
def namespace(cluster: Kubernetes, namespaces: list[str]) -> Iterator[str]:
    name = f"e2e-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    namespaces.append(name)


@pytest.fixture(scope="session")
def release(cluster: Kubernetes, images: Mapping[str, str]) -> Iterator[Release]:
    """The chart, serving all namespaces; a test that changes it leaves it as it was."""
    found = Release(cluster, images, "flexmarl-system")
    found.upgrade()
    yield found
    cluster.kubectl("delete", "crd", "marljobs.flexmarl.io", "--timeout=60s", seconds=90)
    found.uninstall()
    cluster.kubectl("delete", "namespace", found.namespace, "--timeout=150s", seconds=180)


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest,
    cluster: Kubernetes,
    images: Mapping[str, str],
    namespaces: list[str],
    release: Release,
) -> Iterator[Stage]:
    found = Stage(cluster, images, release, namespaces)
    found.begin(request.session.items)
    yield found
    found.end()


@pytest.fixture(autouse=True)
def _beside(request: pytest.FixtureRequest) -> None:
    """What runs beside begins before the first test, and ends before one that is alone."""
    if any(item.get_closest_marker("beside") for item in request.session.items):
        stage: Stage = request.getfixturevalue("stage")
        if request.node.get_closest_marker("alone"):
            stage.quiet()
