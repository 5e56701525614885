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
    beside = pyfuncitem.config.stash.get(BESIDE, None)
    return True if beside is not None and beside.result(pyfuncitem) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    beside = item.config.stash.get(BESIDE, None)
    while beside is not None and not beside.news.empty():
        _say(item.config, beside.news.get())
    if report.failed and call.excinfo is not None:  # the rest of a run takes minutes
        _say(item.config, f"{item.nodeid}: {call.excinfo.value!s:.2000}")
    if report.failed and report.when == "call":
        for namespace in _namespaces(getattr(item, "funcargs", {})):
            report.sections.append((namespace, Kubernetes().evidence(namespace)))
    return report


def _say(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    reporter.write_line(f"\n{line}")


def _namespaces(arguments: Mapping[str, object]) -> list[str]:
    """Of a test; one that ran beside says itself what it left."""
    stage, own = arguments.get("stage"), arguments.get("namespace")
    found = [own] if isinstance(own, str) else []
    return [*found, *(stage.namespaces if isinstance(stage, Stage) else ())]


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
        cluster.kubectl("wait", "--for=delete", *names, "--timeout=120s", seconds=150)


@pytest.fixture
def namespace(cluster: Kubernetes, namespaces: list[str]) -> Iterator[str]:
    name = f"e2e-{secrets.token_hex(3)}"
    cluster.restricted_namespace(name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    namespaces.append(name)


@pytest.fixture(scope="session")
def release(cluster: Kubernetes, images: Mapping[str, str]) -> Iterator[Release]:
    """The chart, serving all namespaces; a test that changes it leaves it as it was.

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
    found = request.config.stash[BESIDE] = Beside(cluster, images, release, namespaces)
    found.begin(request.session.items)
    yield found
    found.end()


@pytest.fixture
def stage(beside: Beside) -> Iterator[Stage]:
    with beside.stage() as found:
        yield found


@pytest.fixture(autouse=True)
def _beside(request: pytest.FixtureRequest) -> None:
    """What runs beside begins before the first test, and ends before one that is alone."""
    if any(item.get_closest_marker("beside") for item in request.session.items):
        beside: Beside = request.getfixturevalue("beside")
        if request.node.get_closest_marker("alone"):
            beside.quiet()
