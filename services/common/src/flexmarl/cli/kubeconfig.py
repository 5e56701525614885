"""What kubeconfigs say: which clusters, which users, which context is meant.

Read here and not by the Kubernetes client, which takes a second to load, takes the last of several
current contexts where `kubectl` takes the first, and goes on without a login where a plugin fails.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from flexmarl.cli.console import INVALID, CommandError
from flexmarl.cli.refusals import Object

KINDS = ("contexts", "clusters", "users")


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster or user; the paths in it begin at the folder of its file."""

    fields: Object
    folder: Path

    def data(self, key: str) -> bytes | None:
        """What stands in the entry itself, else in the file that it names."""
        if self.fields.get(f"{key}-data"):
            return base64.b64decode(self.fields[f"{key}-data"], validate=True)
        path = self.path(key)
        return path.read_bytes() if path else None

    def path(self, key: str) -> Path | None:
        named = self.fields.get(key)
        return self.folder / named if named else None


@dataclass(frozen=True, slots=True)
class Context:
    cluster: Entry
    user: Entry
    namespace: str


def context_of(places: Sequence[Path], name: str | None) -> Context:
    """The context of that name, else the current one. CommandError: there is none that is whole."""
    files = ", ".join(map(str, places))
    try:
        return _context_of(places, name)
    except (yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError) as error:
        why = f": {' '.join(str(error).split())}" if isinstance(error, yaml.YAMLError) else ""
        raise CommandError(
            f"The kubeconfig {files} is empty or damaged{why}. Mend it, or set KUBECONFIG to "
            "another"
        ) from error
    except OSError as error:
        raise CommandError(f"The kubeconfig {files} cannot be read: {error}") from error


def _context_of(places: Sequence[Path], name: str | None) -> Context:
    found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
    current = None
    for place in places:  # whatever comes first counts
        said = yaml.safe_load(place.read_text(encoding="utf-8")) or {}
        current = current or said.get("current-context")
        for kind in KINDS:
            for entry in said.get(kind) or ():
                one = Entry(entry.get(kind[:-1]) or {}, place.absolute().parent)
                found[kind].setdefault(entry["name"], one)
    known, chosen = found["contexts"], name or current
    if not known:
        raise CommandError(f"The kubeconfig {places[0]} names no cluster: it has no context")
    if chosen not in known:
        what = f'no context "{chosen}"' if chosen else "no current context"
        raise CommandError(
            f"Your kubeconfig has {what}: name one by --context; it has {', '.join(known)}", INVALID
        )
    context = known[chosen].fields

    def named_by(kind: str) -> Entry:
        named = context.get(kind)
        if named not in found[f"{kind}s"]:
            raise CommandError(
                f'Your kubeconfig has no {kind} "{named or ""}", which its context "{chosen}" names'
            )
        return found[f"{kind}s"][named]

    user = named_by("user") if context.get("user") else Entry({}, Path())
    return Context(named_by("cluster"), user, context.get("namespace") or "default")
