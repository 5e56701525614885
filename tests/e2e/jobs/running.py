"""Jobs as a user runs them: the `flexmarl` command, its run directory, what it must not leave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

_SCRIPT = Path(sys.executable).with_name("flexmarl")
FLEXMARL: list[str | Path] = (
    [_SCRIPT] if _SCRIPT.exists() else [sys.executable, "-m", "flexmarl.cli"]
)
"""An interpreter that finds the sources on its path has no script beside it."""
HERE = Path(__file__).parent
SECONDS = 300
"""How long anything may take before the test gives up: far more than it does."""

Line = dict[str, Any]


def wait_until(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def seen(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Job:
    """A job file in a directory of its own, its run, and the processes that know it."""

    def __init__(
        self, directory: Path, spec: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.directory, self._own = directory, environment
        self.run_dir = directory / "run"
        self.file = directory / "job.yaml"
        self.output = directory / "output.txt"
        # Short: sockets are made in it.
        self.temporary = Path(tempfile.mkdtemp(prefix="fx", dir="/tmp"))
        for part in (HERE / "user").iterdir():
            if part.is_file():
                shutil.copy(part, directory)
        document = {
            "apiVersion": "flexmarl.io/v1alpha1",
            "kind": "MARLJob",
            "metadata": {"name": "team"},
            "spec": spec,
        }
        self.file.write_text(json.dumps(document))  # which is YAML, too
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """`flexmarl run` in a process group of its own, as a shell starts it."""
        command = ["run", str(self.file), "--run-dir", str(self.run_dir), "--plain", *options]
        with self.output.open("wb") as output:  # a pipe that nobody reads would fill up
            self.process = subprocess.Popen(
                [*FLEXMARL, *command],
                cwd=self.directory,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        return self.process

    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def finish(self, seconds: float = SECONDS) -> tuple[int, str]:
        """Exit code and output of `flexmarl run` once it has ended."""
        assert self.process is not None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.run_dir} goes on and on: {self.progress()}") from None
        return code, self.output.read_text()

    def complete(self, *options: str, seconds: float = SECONDS) -> str:
        """Run it to its end; what it said."""
        self.start(*options)
        code, output = self.finish(seconds)
        assert code == 0, output + self.logs()
        assert self.progress()["phase"] == "Complete"
        return output

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of `flexmarl`, to its end."""
        return subprocess.run(
            [*FLEXMARL, *arguments],
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        own = {"TMPDIR": str(self.temporary), "COLUMNS": "100", "TESTED_JOB": str(self.directory)}
        return os.environ | own | dict(self._own)

    def progress(self) -> Line:
        path = self.run_dir / "progress.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def lines(self, name: str = "metrics.jsonl") -> list[Line]:
        """Whole lines of one of the run's files."""
        path = self.run_dir / name
        if not path.exists():
            return []
        return [json.loads(text) for text in path.read_text().splitlines(True) if text[-1] == "\n"]

    def steps(self) -> int:
        return len(self.lines())

    def summary(self) -> Line:
        return dict(json.loads((self.run_dir / "summary.json").read_text()))

    def tasks(self) -> list[tuple[int, list[str]]]:
        """Step and trained tasks of every line of the metrics."""
        return [(line["step"], line["tasks"]) for line in self.lines()]

    def rewards(self) -> list[Line]:
        return [
            {name: agent["reward"] for name, agent in line["agents"].items()}
            for line in self.lines()
        ]

    def checksums(self) -> dict[str, str]:
        """Policy -> checksum of its weights in the newest checkpoint."""
        policies = json.loads(self._manifest().read_text())["policies"]
        return {name: policy["checksum"] for name, policy in policies.items()}

    def weights(self) -> dict[str, dict[str, Any]]:
        """Policy -> its tensors in the newest checkpoint."""
        folder = self._manifest().parent
        return {name: load_file(folder / name / "model.safetensors") for name in self.checksums()}

    def _manifest(self) -> Path:
        return max((self.run_dir / "checkpoints").glob("*/manifest.json"))

    def logs(self) -> str:
        """The ends of all logs, for the message of a test that failed."""
        texts = []
        for path in sorted((self.run_dir / "logs").glob("*.log")):
            texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}\n")
        return "".join(texts)

    def processes(self) -> dict[int, str]:
        """Pid -> name of those that have the job's directory in their environment.

        The store wrote over its own, and has the path of its socket in its title.
        """
        marker, found = f"TESTED_JOB={self.directory}\0".encode(), {}
        sockets = f"{self.temporary}/flexmarl-".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    known = (entry / "environ").read_bytes()
                    title = (entry / "cmdline").read_bytes()
                    name = (entry / "comm").read_text().strip()
                except OSError:
                    continue
                if marker in known or sockets in title:
                    found[int(entry.name)] = name
        return found

    def pid_of(self, process: str) -> int | None:
        """The kernel knows a process by the first 15 letters of its name, the store as Valkey."""
        wanted = "valkey" if process == "store" else process[:15]
        pids = [pid for pid, name in self.processes().items() if name.startswith(wanted)]
        return pids[0] if pids else None

    def kill(self, process: str) -> None:
        """With -9, as soon as there is one."""
        wait_until(lambda: self.pid_of(process) is not None)
        pid = self.pid_of(process)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def left(self) -> list[str]:
        """What a run must not leave behind."""
        shm = Path("/dev/shm")
        shared = [str(path) for uid in self.submissions() for path in shm.glob(f"flexmarl-{uid}*")]
        sockets = [str(path) for path in self.temporary.glob("flexmarl-*")]
        return [*(f"{pid} {name}" for pid, name in self.processes().items()), *shared, *sockets]

    def submissions(self) -> list[str]:
        """Uids under which processes of this run were started."""
        path = self.run_dir / "submissions"
        return path.read_text().split() if path.exists() else []

    def is_locked(self) -> bool:
        return (self.run_dir / ".lock").exists()

    def clean_up(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            seen(lambda: not self.processes(), 6)  # its guardian removes what it left
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary)
