"""What lies beside a group in the store: written in the same transaction, it is lost with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Self

from flexmarl.data.difficulty import Evidence


@dataclass(frozen=True, slots=True)
class Note:
    solved: Evidence = field(default_factory=dict)
    """How it went, where tasks are chosen by that."""
    drawn: tuple[int, int] | None = None
    """Step and index that it was drawn for, where it may lie in another place."""

    def encoded(self) -> bytes:
        """Empty when there is nothing to say."""
        said = {"solved": self.solved, "drawn": self.drawn}
        return json.dumps(said).encode() if any(said.values()) else b""

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """What an older version wrote says nothing."""
        said = json.loads(raw) if raw else {}
        solved = said.get("solved") or {}
        drawn = said.get("drawn")
        return cls(
            {agent: (share, scored) for agent, (share, scored) in solved.items()},
            (drawn[0], drawn[1]) if drawn else None,
        )
