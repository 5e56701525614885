"""The user's side: the command line, and a folder with a job file, tasks and code beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .jobs import Job
from .specs import CODE_FILES, Spec, agent, policy

SECONDS = 240.0
"""More than any command itself waits for."""
PROGRAM = (sys.executable, "-m", "flexmarl.cli")
TASKS, GROUP = 3, 2
WORKFLOW = """
from flexmarl.rollout.api import Rewards, Task, Team, Workflow
from shared.words import asked


class Alone(Workflow):
    gives_rewards = False

    async def run(self, task: Task, team: Team) -> Rewards:
        await team[self.agents[0]].chat(asked(task.record))
        return None
"""
WORDS = """
def asked(record: dict[str, str]) -> str:
    return f"Say letters: {record['question']}"
"""


def flexmarl(folder: Path, *arguments: str) -> tuple[int, str]:
    """Its exit code and what it printed."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "BROWSER": "true"},  # /bin/true opens nothing
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command that takes its time, and the file that it prints to."""
    command = [*PROGRAM, *arguments]
    with (
        tempfile.NamedTemporaryFile() as file,
        subprocess.Popen(command, stdout=file, stderr=file) as process,
    ):
        try:
            yield process, Path(file.name)
        finally:
            process.kill()


def write(folder: Path, job: Job, steps: int, model: Spec) -> None:
    """The job file, and beside it tasks and code, in folders of their own."""
    own = policy("solver", model=model)
    own["engine"]["scripted"]["tokensPerSecond"] = 3  # still there when a command has looked
    spec = {
        "policies": [own],
        "agents": [agent("solver")],
        "workflow": {"entrypoint": "own.play:Alone"},
        "reward": {"entrypoint": "team:early_letters"},
        "code": {"path": "code"},
        "data": {"uri": "file://data/tasks.jsonl"},
        "steps": steps,
        "batch": {"tasksPerStep": TASKS, "groupSize": GROUP},
        "checkpoint": {"claim": {"size": "1Gi"}},
    }
    document = {
        "apiVersion": "flexmarl.io/v1alpha1",
        "kind": "MARLJob",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    files = {
        "job.yaml": json.dumps(document),
        "data/tasks.jsonl": "".join(
            f'{{"question": "q{number}"}}\n' for number in range(TASKS * steps)
        ),
        "code/own/play.py": WORKFLOW,
        "code/shared/words.py": WORDS,
        "code/team.py": CODE_FILES["team.py"],
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def applied(job: Job, steps: int, model: Spec) -> None:
    """Such a job, submitted as users do it; of the folder nothing is left here."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), job, steps, model)
        asks(job, "apply", "job.yaml", folder=Path(folder))
    job.uid = job.manifest()["metadata"]["uid"]


def asks(job: Job, *arguments: str, folder: Path = Path("/")) -> str:
    """A command about a job that has to succeed."""
    code, said = flexmarl(folder, *arguments, "-n", job.namespace)
    assert code == 0, said
    return said
