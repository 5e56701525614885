"""Tests on a real cluster: `make e2e` finds or starts one, builds and pushes images, runs these."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster.e2e import DEFINITION, NAMESPACE

from .chart import Release
from .kube import Kubernetes
from .stage import Beside, Stage

WHERE = "FLEXMARL_E2E"
"""Set by `make e2e`: the kind of cluster, `node`, `kind` or `given`."""

BESIDE = pytest.StashKey[Beside]()

if WHERE not in os.environ:  # plain pytest neither needs a cluster nor says that it skipped some
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: begins before others")
    config.addinivalue_line("markers", "light: runs no job, so it takes no room on a node")
    config.addinivalue_line("markers", "alone: begins when no other test runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("cluster")
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    beside = pyfuncitem.config.stash.get(BESIDE, None)
    return True if beside is not None and beside.result(pyfuncitem) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:  # the rest of a run takes minutes
        _say(item.config, f"{item.nodeid}: {call.excinfo.value!s:.2000}")
    if report.failed and report.when == "call":
        stage = getattr(item, "funcargs", {}).get("stage")
        assert isinstance(stage, Stage)
        for namespace in stage.namespaces:
            report.sections.append((namespace, stage.cluster.evidence(namespace)))
    return report


def _say(config: pytest.Config, line: str) -> None:
    """Also while a test runs, whose output is kept for its report."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    assert isinstance(reporter, pytest.TerminalReporter)
    assert capture is not None
    with capture.global_and_fixture_disabled():
        reporter.write_line(f"\n{line}")


@pytest.fixture(scope="session")
def cluster() -> Kubernetes:
    found = Kubernetes()
    found.kubectl("get", "--raw", "/readyz")
    return found


@pytest.fixture(scope="session")
def images() -> Mapping[str, str]:
    found: dict[str, str] = yaml.safe_load(Path(os.environ[f"{WHERE}_IMAGES"]).read_text())
    return found


@pytest.fixture(scope="session")
def namespaces(cluster: Kubernetes) -> Iterator[list[str]]:
    """Those that tests are done with: none may hang, whatever was in it."""
    left: list[str] = []
    yield left
    if left:
        names = [f"namespace/{name}" for name in left]
        cluster.kubectl("wait", "--for=delete", *names, "--timeout=120s", seconds=150)


@pytest.fixture(scope="session")
def release(cluster: Kubernetes, images: Mapping[str, str]) -> Iterator[Release]:
    """The chart, serving all namespaces; a test that changes it is alone, and leaves it as it was.

    A definition that was there before stays: every MARLJob would go with it.
    """
    found = Release(cluster, images, NAMESPACE)
    made = not cluster.kubectl("get", "crd", DEFINITION, "--ignore-not-found", "-o", "name")
    found.upgrade()
    yield found
    if made:
        cluster.kubectl("delete", "crd", DEFINITION, "--timeout=60s", seconds=90)
    found.uninstall()
    cluster.kubectl("delete", "namespace", found.namespace, "--timeout=150s", seconds=180)


@pytest.fixture(scope="session")
def beside(
    request: pytest.FixtureRequest,
    cluster: Kubernetes,
    images: Mapping[str, str],
    namespaces: list[str],
    release: Release,
) -> Iterator[Beside]:
    found = request.config.stash[BESIDE] = Beside(
        cluster, images, release, namespaces, partial(_say, request.config)
    )
    found.begin(request.session.items)
    yield found
    found.end()


@pytest.fixture
def stage(request: pytest.FixtureRequest, beside: Beside) -> Iterator[Stage]:
    if request.node.get_closest_marker("alone"):
        beside.quiet()
    with beside.stage() as found:
        yield found
