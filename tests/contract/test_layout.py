"""The folder shape that packaging relies on."""

import subprocess
import tomllib
from pathlib import Path


def test_the_namespace_is_not_a_package(repo: Path) -> None:
    """One such file would hide every other portion."""
    assert not list(repo.glob("**/src/flexmarl/__init__.py"))


def test_every_source_root_is_packaged(repo: Path) -> None:
    roots = {str(path.relative_to(repo)) for path in repo.glob("services/*")}
    roots = {f"{root}/src" for root in (*roots, "operator")}
    tool = tomllib.loads((repo / "pyproject.toml").read_text())["tool"]
    build = tool["hatch"]["build"]
    assert set(build["dev-mode-dirs"]) == roots
    assert {
        path.removesuffix("/flexmarl") for path in build["targets"]["wheel"]["packages"]
    } == roots
    assert set(tool["mypy"]["mypy_path"].split(":")) == roots


def test_a_source_release_holds_everything_that_is_released(repo: Path) -> None:
    build = tomllib.loads((repo / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    held = {path.strip("/") for path in build["targets"]["sdist"]["include"]}
    folders = {path.parts[0] for path in map(Path, _tracked(repo)) if len(path.parts) > 1}
    assert {folder for folder in folders if not folder.startswith(".")} <= held
    assert all((repo / path).exists() for path in held)


def _tracked(repo: Path) -> list[str]:
    command = ["git", "-C", str(repo), "ls-files"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
