"""reasoning-gym, imported without what it would draw with. Light to import."""

import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

DRAWING = ("matplotlib", "mpl_toolkits")
"""One generator's library brings them for pictures that nobody asks it for. To import them takes as
long as to import all generators."""


def reasoning_gym() -> ModuleType:
    """With its registry filled. ImportError: it is not installed."""
    with warnings.catch_warnings(), _nothing_drawn():
        warnings.simplefilter("ignore")  # its dependencies warn while they are compiled
        return importlib.import_module("reasoning_gym")


class _Nothing(ModuleType):
    """Has whatever is imported from it, to no use."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Nowhere(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        drawing = fullname.partition(".")[0] in DRAWING
        return ModuleSpec(fullname, self, is_package=True) if drawing else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """In the block, libraries for drawing that are not there yet are empty."""
    finder = _Nowhere()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _Nothing):
                del sys.modules[name]
