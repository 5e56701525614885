"""A supervisor in a process of its own, and a look at everything that it must not leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECONDS = 300.0
"""How long anything may take before a test gives up: far more than it does."""
JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {name: team}
spec:
  policies:
  - {name: solver, model: {uri: "random://llama?hidden=8"}, engine: {kind: scripted}}
  - {name: heavy, model: {uri: "random://llama?hidden=8"}}
  agents: [{name: solver, policy: solver}, {name: heavy, policy: heavy}]
  workflow: {name: solver-verifier}
  data: {uri: "gym://chain_sum"}
  steps: 1
  roles:
    worker: {restartPolicy: {max: 2, backoff: 0.05}}
    engine: {restartPolicy: {max: 2, backoff: 0.05}}
    orchestrator: {restartPolicy: {max: 2, backoff: 0.05}}
"""
SUPERVISOR = """
import sys
from pathlib import Path
import flexmarl.local.crew
from flexmarl.local.forks import WarmParent
from flexmarl.local.roles import MODULES
from flexmarl.local.supervisor import run_job

imports = sys.argv[2].split(",")
flexmarl.local.crew.WarmParent = lambda *rest: WarmParent(*rest, imports=imports)
run_dir = Path(sys.argv[1])
try:
    outcome = run_job(
        run_dir / "job.yaml", base_dir=run_dir, run_dir=run_dir,
        modules={role: "fakes" for role in MODULES},
        on_event=lambda text: print("event:", text, flush=True),
    )
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
print("complete" if outcome.complete else f"failed: {outcome.message}")
"""
EVERYONE = (
    "store",
    "experience",
    "weights",
    "engine-solver-0",
    "engine-heavy-0",
    "trainer-0",
    "rollout-worker-0",
    "orchestrator",
)


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Supervised:
    """One run of the supervisor over fake processes."""

    def __init__(self, directory: Path) -> None:
        self._environment: dict[str, str] = {}
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        # Short: sockets are made in it.
        self.temporary = Path(tempfile.mkdtemp(prefix="fx", dir="/tmp"))
        (self.run_dir / "job.yaml").write_text(JOB)
        self._process: subprocess.Popen[str] | None = None

    def tell(self, process: str, order: str) -> None:
        (self.run_dir / f"{process}.do").write_text(order)

    def use_store(self, url: str) -> None:
        """Everybody keeps a key in it."""
        job = self.run_dir / "job.yaml"
        job.write_text(f"{JOB}  store: {{url: '{url}'}}\n")
        self._environment["TESTED_STORE"] = url

    def start(self, imports: str = "json") -> "subprocess.Popen[str]":
        return self._start(["-c", SUPERVISOR, str(self.run_dir), imports])

    def start_real(self, job: Path, *options: str) -> "subprocess.Popen[str]":
        """`flexmarl run` with the real processes, in a directory of its own."""
        shutil.rmtree(self.run_dir)
        return self.resume_real(job, *options, resume=False)

    def resume_real(self, job: Path, *options: str, resume: bool = True) -> "subprocess.Popen[str]":
        command = ["-m", "flexmarl.cli", "run", str(job), "--run-dir", str(self.run_dir), "--plain"]
        return self._start([*command, *options, *(["--resume"] if resume else [])])

    def _start(self, arguments: list[str]) -> "subprocess.Popen[str]":
        own = {"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(self.temporary)}
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | own | self._environment | {"SUPERVISED_RUN": str(self.run_dir)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self._process

    def finish(self, seconds: float = SECONDS) -> tuple[int, str]:
        """Exit code and output of the supervisor once it has ended."""
        assert self._process is not None
        output, _ = self._process.communicate(timeout=seconds)
        return self._process.returncode, output

    def started(self, process: str) -> list[int]:
        """Pids that `process` has had."""
        path = self.run_dir / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == process]

    def started_still_running(self) -> list[int]:
        """Pids of the processes, without the supervisor and its guardian."""
        path = self.run_dir / "starts"
        known = {int(line.split()[1]) for line in path.read_text().splitlines()}
        return [pid for pid in self.processes() if pid in known]

    def wait_for_all(self) -> None:
        mine = EVERYONE[1:] if "TESTED_STORE" in self._environment else EVERYONE
        wait_until(lambda: all(self.started(name) for name in mine))
        wait_until(lambda: "processes are ready" in self.log())

    def log(self) -> str:
        path = self.run_dir / "logs" / "supervisor.log"
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[int]:
        """Those that know the run directory by their environment or arguments."""
        marker, found = str(self.run_dir).encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if marker in known:
                    found.append(int(entry.name))
        return found

    def left(self) -> list[str]:
        """What a run must not leave behind."""
        submissions = self.run_dir / "submissions"
        uids = submissions.read_text().split() if submissions.exists() else []
        shared = [path for uid in uids for path in Path("/dev/shm").glob(f"flexmarl-{uid}*")]
        sockets = self.temporary.glob("flexmarl-*")
        return [*map(str, self.processes()), *map(str, shared), *map(str, sockets)]

    def warm(self) -> int:
        """Pid of the warm parent."""
        named = [pid for pid in self.processes() if self._comm(pid) == "warm"]
        assert len(named) == 1
        return named[0]

    def pid_of(self, process: str) -> int:
        """Of a real process, which the kernel knows by the first 15 letters of its name."""
        return next(pid for pid in self.processes() if self._comm(pid) == process[:15])

    def progress(self) -> dict[str, object]:
        path = self.run_dir / "progress.json"
        found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def steps(self) -> int:
        path = self.run_dir / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def is_session_of_its_own(self, pid: int) -> bool:
        return self._comm(pid) == "sleep" and os.getsid(pid) == pid

    def _comm(self, pid: int) -> str:
        return Path(f"/proc/{pid}/comm").read_text().strip()

    def clean_up(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    run = Supervised(tmp_path)
    yield run
    run.clean_up()
