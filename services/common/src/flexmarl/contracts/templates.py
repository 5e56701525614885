"""Texts of a job file with {fields} of a task in them, such as prompts."""

import string

from flexmarl.contracts.problems import show


class TemplateError(ValueError):
    """A text that cannot be filled: what is wrong, and what is allowed."""

    def __init__(self, says: str, allowed: str) -> None:
        super().__init__(f"{says}; {allowed}")
        self.says, self.allowed = says, allowed


def fields_in(text: str) -> list[str]:
    """The names that stand in braces, each once; TemplateError."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TemplateError(f"{show(text)}: {error}", "write {{ and }} for braces") from error
    names = [name for _, name, _, _ in parts if name is not None]
    if not all(name.isidentifier() for name in names):
        raise TemplateError(
            f"{show(text)} is not allowed",
            "only names of task fields stand in braces, as in {question}",
        )
    return list(dict.fromkeys(names))
