"""The folder shape that packaging relies on."""

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
