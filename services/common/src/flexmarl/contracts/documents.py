"""YAML text to plain data, with the line of every field, and back.

Numbers, booleans and text are told apart as on a cluster (YAML 1.1 words such as `no` are
booleans, `1e-3` is a number, dates are text). Refused with their line: duplicate keys, tags, keys
that aren't text, numbers that aren't finite, documents that contain themselves.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from flexmarl.contracts.problems import FieldPath, Problem, show

MOST_CHARACTERS = 1 << 20
MOST_NODES = 100_000
"""Aliases count each time: a small file may not unfold into a huge one."""
DEEPEST = 50

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_SCALARS = {_TAG + name for name in ("null", "bool", "int", "float", "str")}
_REPLACED = {_TAG + name for name in ("int", "float", "timestamp", "value")}
_INT = re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"
    r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER_STARTS = list("-+0123456789.")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Also quotes text that only `_Loader` would take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in ((_TAG + "int", _INT), (_TAG + "float", _FLOAT)):
    _Loader.add_implicit_resolver(_tag, _pattern, _NUMBER_STARTS)
    _Dumper.add_implicit_resolver(_tag, _pattern, _NUMBER_STARTS)


@dataclass(slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None), where it stood, what was wrong."""

    data: Any = None
    lines: dict[FieldPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: FieldPath) -> str:
        """`line 17` of `path`, or of the nearest parent that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return f"line {self.lines[path]}" if path in self.lines else ""


def parse(text: str) -> Document:
    """Every problem that can be found is in the result; `data` is then what could be read."""
    document = Document()
    if len(text) > MOST_CHARACTERS:
        document.problems.append(Problem((), "the file is larger than 1 MiB"))
        return document
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.data = _Builder(loader, document).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        says = " ".join(part for part in (error.context, error.problem) if part)
        document.problems.append(
            Problem((), f"not valid YAML: {says}", place=f"line {mark.line + 1}" if mark else "")
        )
    except yaml.YAMLError as error:  # characters that YAML forbids
        document.problems.append(Problem((), f"not valid YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        document.problems.append(Problem((), "nested too deeply"))
    finally:
        if loader is not None:
            loader.dispose()
    return document


def dump(data: Any) -> str:
    """YAML that `parse` reads back as equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Builder:
    def __init__(self, loader: _Loader, document: Document) -> None:
        self._loader, self._document = loader, document
        self._open: set[int] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, path: FieldPath) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        self._nodes += 1
        if self._nodes > MOST_NODES:
            if self._nodes == MOST_NODES + 1:
                self._refuse((), node, f"unfolds into more than {MOST_NODES} values")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            return self._refuse(path, node, "contains itself")
        if len(self._open) >= DEEPEST:
            return self._refuse(path, node, f"nested more than {DEEPEST} deep")
        self._open.add(id(node))
        value = self._collection(node, path)
        self._open.discard(id(node))
        return value

    def _collection(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._refuse(path, node, f"the tag {show(node.tag)} is not allowed")

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for key, value in self._merged(value_node, path).items():
                    result.setdefault(key, value)
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(path, key_node, "a key must be text")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if _SURROGATE.search(key):
                self._refuse(path, key_node, "a key holds half a character (a lone surrogate)")
                continue
            if key_node.tag != _TAG + "str":
                says = f"the key {key} is no text in YAML"
                self._refuse(path, key_node, says, "write it in quotes")
            if key in own:
                says = f"duplicate key, first given on line {own[key]}"
                self._refuse((*path, key), key_node, says)
            own.setdefault(key, line)
            self._document.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key))
        return result

    def _merged(self, node: yaml.Node, path: FieldPath) -> dict[str, Any]:
        """What `<<` brings; the first of several sources wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        for source in sources:
            if isinstance(source, yaml.MappingNode):
                for key, value in self.build(source, path).items():
                    result.setdefault(key, value)
            else:
                self._refuse(path, source, "<< takes a mapping or a list of mappings")
        return result

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        if node.tag not in _SCALARS:
            return self._refuse(path, node, f"the tag {show(node.tag)} is not allowed")
        try:
            value = self._loader.construct_object(node)
        except (ValueError, KeyError, IndexError, yaml.YAMLError):
            kind = node.tag.removeprefix(_TAG)
            return self._refuse(path, node, f"{show(node.value)} is no valid {kind}")
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(path, node, f"{node.value} is not a finite number")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            return self._refuse(path, node, "the number is larger than 64 bits")
        if isinstance(value, str) and _SURROGATE.search(value):
            return self._refuse(path, node, "holds half a character (a lone surrogate)")
        return value

    def _refuse(self, path: FieldPath, node: yaml.Node, says: str, allowed: str = "") -> None:
        place = f"line {node.start_mark.line + 1}"
        self._document.problems.append(Problem(path, says, allowed, place=place))
