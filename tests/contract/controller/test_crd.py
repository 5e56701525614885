"""The MARLJob's definition in the chart. tests/e2e/cluster puts it before a real API server."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import observations, subject

from flexmarl.contracts import rules
from flexmarl.contracts.cel import FIXED, RULES
from flexmarl.contracts.cluster_rules import check_for_cluster
from flexmarl.contracts.crd import crd
from flexmarl.contracts.status import JobStatus
from flexmarl.controller.findings import find
from flexmarl.controller.observed import Observed
from flexmarl.controller.phase import Phase
from flexmarl.controller.reading import read
from flexmarl.controller.status import next_status

from .bad_jobs import BAD, sound


def schema() -> dict[str, Any]:
    (version,) = crd()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def with_defaults(node: dict[str, Any], value: Any) -> Any:
    """`value` as the API server stores it."""
    if isinstance(value, list):
        return [with_defaults(node["items"], item) for item in value]
    if isinstance(value, dict) and "properties" in node:
        value = {
            name: sub["default"] for name, sub in node["properties"].items() if "default" in sub
        } | value
        return {name: with_defaults(node["properties"][name], at) for name, at in value.items()}
    return value


def test_the_committed_definition_is_what_the_models_say(repo: Path) -> None:
    committed = yaml.safe_load((repo / "charts/flexmarl/files/marljobs.yaml").read_text())
    assert committed == crd(), "run `make generate`"


def test_a_sound_job_stays_sound_with_the_servers_defaults(repo: Path) -> None:
    examples = [yaml.safe_load(path.read_text()) for path in (repo / "examples").glob("**/*.yaml")]
    for document in (sound(), *examples):
        stored = {**document, "spec": with_defaults(schema(), document["spec"])}
        assert rules.check(stored) == rules.check(document)


@pytest.mark.parametrize("words", BAD)
def test_validate_uses_the_words_of_the_api_server(words: str) -> None:
    problems = (*rules.check(BAD[words]), *check_for_cluster(BAD[words]))
    assert any(words in str(problem) for problem in problems)
    assert any(words in rule.message for rule in RULES)


def test_every_rule_of_the_server_is_broken_by_some_job() -> None:
    of_documents = [rule for rule in RULES if "oldSelf" not in rule.cel]
    silent = [r for r in of_documents if not any(words in r.message for words in BAD)]
    assert not silent


def test_every_field_is_fixed_or_known_to_change() -> None:
    mutable = {
        "suspend",
        "suspendTimeout",
        "steps",
        "pools",
        "balancing",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    }
    assert set(schema()["properties"]) == {*FIXED, *mutable}


@given(st.sampled_from(Phase), observations)
def test_every_field_of_a_status_is_told_of(phase: Phase, what: Observed) -> None:
    status = next_status({}, what, find(what), phase, subject().job.spec)
    JobStatus.model_validate(status)  # no field that it does not know


@pytest.mark.parametrize("name", ["my.job", "Team", "-team", "team-", "te_am"])
def test_a_name_that_is_none_is_refused_in_the_words_of_validate(name: str) -> None:
    (version,) = crd()["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    policy = root["properties"]["spec"]["properties"]["policies"]["items"]["properties"]["name"]
    (of_job, *_), (of_policy,) = (node["x-kubernetes-validations"] for node in (root, policy))
    assert of_job["rule"].replace("self.metadata.name", "self") == of_policy["rule"]
    document = {**sound(), "metadata": {"name": name, "namespace": "default"}}
    document["spec"]["policies"][0]["name"] = name
    problems = read(document).problems
    for rule, field in ((of_job, "metadata.name"), (of_policy, "spec.policies[0].name")):
        assert f'{field}: "{name}" {rule["message"]}' in problems


def test_schema_is_structural() -> None:
    """No construct that the API server refuses, anywhere."""

    def visit(node: dict[str, Any]) -> None:
        assert not {"$ref", "anyOf", "allOf", "oneOf", "const", "prefixItems"} & set(node)
        assert "type" in node or "x-kubernetes-preserve-unknown-fields" in node
        for sub in node.get("properties", {}).values():
            visit(sub)
        for key in ("items", "additionalProperties"):
            if key in node:
                visit(node[key])

    visit(schema())
    (version,) = crd()["spec"]["versions"]
    visit(version["schema"]["openAPIV3Schema"]["properties"]["status"])


def test_kubernetes_knows_every_field_of_the_definition() -> None:
    assert importlib.util.find_spec("kubernetes_validate")
    import kubernetes_validate

    kubernetes_validate.validate(crd(), "1.36", strict=True)
