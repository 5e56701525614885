"""The sidecar as a process: what it removes, and what it must not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from flexmarl.runtime.grpc import wait_ready
from flexmarl.tensors.holding import Hold, set_names
from flexmarl.tensors.layout import Layout, TensorSpec
from flexmarl.tensors.sets import TensorSet

LAYOUT = Layout({"weights/w": TensorSpec("U8", (4,))})
JOB = """
apiVersion: flexmarl.io/v1alpha1
kind: MARLJob
metadata: {name: team}
spec:
  policies: [{name: solver, model: {uri: "random://llama?hidden=8"}}]
  agents: [{name: solver, policy: solver}]
  workflow: {name: solver-verifier}
  data: {uri: "gym://chain_sum"}
  steps: 1
"""


def start(directory: Path) -> "subprocess.Popen[bytes]":
    (directory / "job.yaml").write_text(JOB)
    variables = {
        "FLEXMARL_JOB_FILE": str(directory / "job.yaml"),
        "FLEXMARL_JOB_UID": "job",
        "FLEXMARL_LISTEN": f"unix://{directory}/weights.sock",
        "FLEXMARL_SHM_DIR": str(directory),
        "FLEXMARL_DRAIN_SECONDS": "1",
    }
    code = "from flexmarl.tensors.process import main; main()"
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | variables)


def make(shm_dir: Path, name: str) -> TensorSet:
    tensor_set = TensorSet.create(shm_dir, name, LAYOUT)
    tensor_set.write(0, {"weights/w": b"1234"})
    return tensor_set


async def test_a_restart_keeps_the_sets_of_a_living_job_and_a_stop_removes_them(
    tmp_path: Path,
) -> None:
    make(tmp_path, "dead.solver").close()
    with make(tmp_path, "neighbour.solver"):
        make(tmp_path, "job.solver").close()  # nobody but the sidecar holds it

        for end, left in (
            (signal.SIGKILL, ["job.solver"]),  # a crash
            (signal.SIGTERM, []),
        ):
            sidecar = start(tmp_path)
            await wait_ready(f"unix://{tmp_path}/weights.sock", 30)
            assert set_names(tmp_path, "job") == ["job.solver"]
            assert set_names(tmp_path, "dead") == []
            sidecar.send_signal(end)
            assert sidecar.wait(20) == (0 if end is signal.SIGTERM else -end)
            assert set_names(tmp_path, "job") == left
        assert set_names(tmp_path, "neighbour") == ["neighbour.solver"]


async def test_a_stop_leaves_sets_that_a_trainer_still_uses(tmp_path: Path) -> None:
    make(tmp_path, "job.solver").close()
    trainer = Hold(tmp_path, "job")
    sidecar = start(tmp_path)
    await wait_ready(f"unix://{tmp_path}/weights.sock", 30)
    sidecar.terminate()
    assert sidecar.wait(20) == 0
    trainer.release()
    assert set_names(tmp_path, "job") == ["job.solver"]
