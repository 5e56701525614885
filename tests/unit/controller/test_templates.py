"""Whatever stands in a pod template: it is told, or a pod is made of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.controller.seen import INSTALLATION, document

from flexmarl.controller.reading import read
from flexmarl.controller.render import render
from flexmarl.controller.render.parts import Subject

KEYS = (
    "metadata", "labels", "annotations", "spec", "containers", "initContainers", "volumes",
    "name", "main", "preflight", "env", "ports", "volumeMounts", "mountPath", "/tmp", "image",
    "securityContext", "tolerations", "affinity",
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(KEYS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)


def like(keys: tuple[str, ...], below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(keys), below) | ANYTHING


NAMED = st.fixed_dictionaries({"name": st.sampled_from(["main", "preflight", "x"]) | ANYTHING})
CONTAINER = st.builds(
    lambda name, rest: {**name, **rest},
    NAMED,
    like(("env", "ports", "volumeMounts"), st.lists(NAMED, max_size=2)).filter(
        lambda value: isinstance(value, dict)
    ),
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": like(("labels", "annotations"), ANYTHING),
        "spec": like(
            ("containers", "initContainers", "volumes", "tolerations"),
            st.lists(CONTAINER | ANYTHING, max_size=2),
        ),
        "other": ANYTHING,
    },
)


@given(TEMPLATES, TEMPLATES, st.sampled_from(["orchestrator", "worker", "engine", "experience"]))
def test_a_template_is_told_or_made_into_a_pod(
    template: dict[str, Any], other: dict[str, Any], role: str
) -> None:
    pools = [{"name": "fast", "role": "engine", "template": other}]
    plain = document(roles={role: {"template": template}}, pools=pools)
    for policy in plain["spec"]["policies"]:
        policy["pools"] = ["fast"]
    job, problems, *_ = read(plain)
    assert job is not None
    if not problems:
        render(Subject(job, "0f3c-uid", plain, "token", ""), INSTALLATION, {})


def test_a_template_that_asks_for_little_is_sound() -> None:
    template = {
        "metadata": {"labels": {"team": "blue"}, "annotations": {"a": "b"}},
        "spec": {
            "priorityClassName": "high",
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "env": [{"name": "A", "value": "b"}], "ports": [{}],
                 "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }  # fmt: skip
    assert read(document(roles={"worker": {"template": template}}))[1] == ()


def test_a_part_that_there_is_not_is_told_with_the_nearest() -> None:
    found = read(document(roles={"worker": {"template": {"metadat": {}, "spec": None}}}))
    assert found.problems == (
        "spec.roles.worker.template.metadat: unknown field; allowed here: metadata, spec; "
        'did you mean "metadata"?',
        "spec.roles.worker.template.spec: nothing is not allowed; must be a mapping",
    )
