"""A field of a plain document together with its path; absent ones too, so that rules need no `if`.

Values of another type than asked for count as absent.
"""

from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.problems import FieldPath, format_path


@dataclass(frozen=True, slots=True)
class Place:
    value: Any = None
    path: FieldPath = ()

    def __getitem__(self, key: str) -> "Place":
        return Place(self.mapping.get(key), (*self.path, key))

    def __str__(self) -> str:
        return format_path(self.path)

    @property
    def key(self) -> str | int:
        return self.path[-1]

    @property
    def given(self) -> bool:
        """Whether it is in the document; a field left empty is not."""
        return self.value is not None

    @property
    def mapping(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else {}

    def fields(self) -> "list[Place]":
        """Those of a mapping that are given."""
        return [field for key in self.mapping if (field := self[key]).given]

    def items(self) -> "list[Place]":
        """Those of a list."""
        items = self.value if isinstance(self.value, list) else []
        return [Place(item, (*self.path, index)) for index, item in enumerate(items)]

    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    def number(self, default: float | None = None) -> float | None:
        """The number there; `default` when nothing is given."""
        if self.value is None:
            return default
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return self.value if is_number else None
