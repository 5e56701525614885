"""What every image promises, read off the Dockerfiles: building them is `make e2e`'s part."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

IMAGES = ("engine-vllm", "slim", "trainer")


def dockerfile(repo: Path, name: str) -> str:
    return (repo / f"images/{name}.Dockerfile").read_text()


def requirements(repo: Path, extra: str) -> set[str]:
    """Names of what `flexmarl[extra]` asks for, through extras of extras."""
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    left = [*project["dependencies"], *project["optional-dependencies"][extra]]
    while left:
        ((name, extras),) = re.findall(r"^([\w.-]+)(?:\[([^\]]*)\])?", left.pop())
        if name != "flexmarl":
            found.add(name)
            continue
        for each in extras.split(","):
            left += project["optional-dependencies"][each.strip()]
    return found


def test_there_is_one_dockerfile_per_image(repo: Path) -> None:
    assert sorted(path.name for path in (repo / "images").glob("*.Dockerfile")) == [
        f"{name}.Dockerfile" for name in IMAGES
    ]


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_runs_flexmarl_as_a_user_with_a_passwd_entry(repo: Path, name: str) -> None:
    text = dockerfile(repo, name)
    assert "ARG BASE=python:3.11-slim-bookworm\n" in text
    assert "echo 'flexmarl:x:10001:10001:" in text
    assert text.endswith('USER 10001:10001\nENTRYPOINT ["flexmarl"]\n')


@pytest.mark.parametrize("name", IMAGES)
def test_every_base_can_be_replaced(repo: Path, name: str) -> None:
    """Else a machine without the public registry could not build them."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", dockerfile(repo, name), re.MULTILINE)
    named = {alias for _, alias in stages}
    assert all(base == "${BASE}" or base in named for base, _ in stages)


@pytest.mark.parametrize("name", IMAGES)
def test_no_process_compiles_what_it_imports(repo: Path, name: str) -> None:
    """Nothing can be written beside it: each would compile it anew."""
    text = dockerfile(repo, name)
    installs = re.findall(r"uv pip install (?:[^&]|\n)*?(?=&&|\n[A-Z#])", text)
    assert len(installs) == 2
    assert all("--compile-bytecode" in one for one in installs)
    last = text.rpartition("\nFROM ${BASE}\n")[2]
    assert "python3 -m compileall" in last  # python:slim's standard library is not


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_says_what_it_was_built_on(repo: Path, name: str) -> None:
    """A base pinned by digest stays known; an argument from before FROM has to be named again."""
    last = dockerfile(repo, name).rpartition("\nFROM ${BASE}\n")[2]
    assert "\nARG BASE\n" in last.partition("LABEL ")[0]
    assert 'org.opencontainers.image.base.name="${BASE}"' in last


def test_the_slim_image_asks_for_no_torch(repo: Path) -> None:
    slim, trainer = requirements(repo, "slim"), requirements(repo, "trainer")
    heavy = {"torch", "transformers"}
    assert not slim & heavy
    assert heavy <= trainer
