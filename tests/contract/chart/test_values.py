"""Which values the chart takes, and what it says of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.contract.chart.helm import REGISTRY, Helm
from tests.contract.chart.readme import CHART, values, with_table

TEXT = (CHART / "values.yaml").read_text()


def test_without_a_registry_it_says_how_to_fill_one(each_helm: Helm) -> None:
    words = each_helm.refusal({})
    assert "image.registry is empty" in words
    assert "make images push REGISTRY=" in words


def test_without_a_store_it_says_where_to_name_one(helm: Helm) -> None:
    assert "store.secretName is empty" in helm.refusal({**REGISTRY, "store.bundled": False})


def test_without_a_service_account_it_says_where_to_name_one(helm: Helm) -> None:
    words = helm.refusal({**REGISTRY, "serviceAccount.create": False})
    assert "serviceAccount.name is empty" in words


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("imagee", {}),
        ("image.registri", "x"),
        ("image.slim.digets", ""),
        ("watch.namespace", "x"),
        ("controller.replicas", 2),
        ("store.persistence.clas", ""),
        ("monitoring.podMonitor.enable", True),
    ],
)
def test_a_misspelt_value_is_refused_by_its_name(each_helm: Helm, path: str, value: object) -> None:
    words = each_helm.refusal({**REGISTRY, path: value})
    assert path.rpartition(".")[2] in words
    assert "dditional propert" in words


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.registry", "https://registry.example"),
        ("image.pullPolicy", "Sometimes"),
        ("image.slim.digest", "sha256:12"),
        ("controller.logLevel", "LOUD"),
        ("store.maxMemoryMib", "1Gi"),
        ("store.fsync", "never"),
        ("watch.namespaces", "one"),
        ("crds.enabled", "yes"),
        ("fullnameOverride", "9lives"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(each_helm: Helm, path: str, value: object) -> None:
    words = each_helm.refusal({**REGISTRY, path: value})
    assert path in words or f"/{path.replace('.', '/')}" in words


def test_the_schema_has_the_values_that_there_are() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = set(_leaves(schema, ""))
    given = {value.path for value in values(TEXT)}
    assert given - known == set()
    assert {path for path in known - given if path != "global"} == set()


def _leaves(schema: dict[str, Any], parent: str) -> Iterator[str]:
    for key, inner in schema["properties"].items():
        if "properties" in inner:
            assert inner["additionalProperties"] is False, key
            yield from _leaves(inner, f"{parent}{key}.")
        else:
            yield f"{parent}{key}"


def test_every_value_is_explained() -> None:
    assert [value.path for value in values(TEXT) if not value.meaning] == []


def test_the_readme_has_every_value() -> None:
    page = (CHART / "README.md").read_text()
    assert page == with_table(page, TEXT), "run: python tests/contract/chart/readme.py"


def test_the_chart_has_the_version_of_the_package(repo: Any) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (repo / "pyproject.toml").read_text()
