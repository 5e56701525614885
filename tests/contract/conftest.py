"""What contract tests of several packages use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api import api_server, installed
from tests.cluster.layout import layout


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """Of the administrator of an API server without a node, which all tests of a session share."""
    if not installed(layout()):
        lacking = "no API server: python -m tests.cluster install --api"
        pytest.fail(lacking) if os.environ.get("CI") else pytest.skip(lacking)
    with api_server(layout()) as path:
        yield path
