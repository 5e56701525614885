"""What the README shows holds: its job, its workflow, its commands."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml
from typer.core import TyperGroup

from flexmarl.cli.app import app
from flexmarl.cli.checks import checked_job
from flexmarl.local.roles import MODULES

FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def readme(repo: Path) -> str:
    return (repo / "README.md").read_text()


def blocks(readme: str, language: str) -> list[str]:
    return [text for kind, text in FENCED.findall(readme) if kind == language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With the data and the model that the README's job names."""
    record = json.dumps({"question": "1 + 1", "answer": "2"})
    for name in ("tasks", "heldout"):
        (tmp_path / f"{name}.jsonl").write_text(f"{record}\n")
    (tmp_path / "my-model").mkdir()
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def test_the_job_is_valid_without_a_warning(readme: str, folder: Path) -> None:
    (text,) = blocks(readme, "yaml")
    path = folder / "job.yaml"
    path.write_text(text)
    assert checked_job(path).warnings == ()


def test_every_excerpt_about_the_pipeline_fits_into_a_job(
    readme: str, repo: Path, folder: Path
) -> None:
    (text,) = blocks(readme, "yaml")
    excerpts = blocks((repo / "docs/pipeline.md").read_text(), "yaml")
    assert excerpts
    for number, excerpt in enumerate(excerpts):
        document = yaml.safe_load(text)
        document["spec"] |= yaml.safe_load(excerpt)
        path = folder / f"{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        assert checked_job(path).warnings == ()


def test_the_workflow_is_one_that_a_job_can_name(readme: str, folder: Path) -> None:
    (code,) = blocks(readme, "python")
    (folder / "readme_team.py").write_text(code)
    (text,) = blocks(readme, "yaml")
    document = yaml.safe_load(text)
    (name,) = re.findall(r"^class (\w+)\(Workflow\)", code, re.MULTILINE)
    played = dict.fromkeys(re.findall(r'team\["(\w+)"\]', code))
    document["spec"] |= {
        "agents": [
            {"name": agent, "policy": "judge" if agent == "judge" else "solver"} for agent in played
        ],
        "workflow": {"entrypoint": f"readme_team:{name}"},
        "code": {"path": "."},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    assert checked_job(path).warnings == ()
    assert "readme_team" in sys.modules


def test_every_command_can_be_typed_as_it_stands(readme: str, repo: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (repo / "Makefile").read_text(), re.MULTILINE))
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    seen = set()
    for line in "".join(blocks(readme, "console")).splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= targets, line
            continue
        if program == "helm":
            assert (repo / arguments[2] / "Chart.yaml").exists(), line
            continue
        assert program == ".venv/bin/flexmarl", line
        command = group.commands[arguments[0]]
        command.make_context(arguments[0], arguments[1:])
        seen.add(arguments[0])
        for argument in arguments:
            assert not argument.startswith("examples/") or (repo / argument).exists(), line
    assert {"run", "status", "episodes", "export"} <= seen


def test_every_process_has_a_line(readme: str) -> None:
    table = readme.partition("| `flexmarl serve ...`")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(MODULES)
