"""Rules about the shape of pod templates, which the API server stores as they are."""

from collections.abc import Iterable, Iterator

from flexmarl.contracts.places import Place
from flexmarl.contracts.problems import Problem, nearest, show

PARTS = ("metadata", "spec")
LISTS = {"containers": "name", "initContainers": "name", "volumes": "name"}
"""Of a pod's spec, and what tells their items apart."""
LISTS_OF_CONTAINERS = {"env": "name", "ports": "", "volumeMounts": "mountPath"}


def templates_have_the_shape_of_pods(spec: Place) -> Iterator[Problem]:
    """As far as laying one over another needs it; of the rest the API server knows more."""
    templates = [role["template"] for role in spec["roles"].fields()]
    templates += [pool["template"] for pool in spec["pools"].items()]
    for template in templates:
        for key in template.mapping:
            if key not in PARTS:
                allowed = f"allowed here: {', '.join(PARTS)}"
                yield Problem((*template.path, key), "unknown field", allowed, nearest(key, PARTS))
        yield from _mappings(template, PARTS)
        yield from _mappings(template["metadata"], ("labels", "annotations"))
        yield from _lists(template["spec"], LISTS)
        for kind in ("containers", "initContainers"):
            for container in template["spec"][kind].items():
                yield from _lists(container, LISTS_OF_CONTAINERS)


def _mappings(parent: Place, keys: Iterable[str]) -> Iterator[Problem]:
    for key in keys:
        if key in parent.mapping and not isinstance(parent[key].value, dict):
            yield _wrong(parent[key], "a mapping")


def _lists(parent: Place, lists: dict[str, str]) -> Iterator[Problem]:
    """Of mappings, each of which has a text that tells it apart."""
    for key, name in lists.items():
        place = parent[key]
        if key in parent.mapping and not isinstance(place.value, list):
            yield _wrong(place, "a list")
        for item in place.items():
            if not isinstance(item.value, dict):
                yield _wrong(item, "a mapping")
            elif name and item[name].text() is None:
                yield _wrong(item[name], "text")


def _wrong(place: Place, allowed: str) -> Problem:
    return Problem(place.path, f"{show(place.value)} is not allowed", f"must be {allowed}")
