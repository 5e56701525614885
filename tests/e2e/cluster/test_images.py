"""Our images do their work as an administrator who trusts nobody would run them."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from .kube import restricted_pod
from .stage import Stage

pytestmark = pytest.mark.light

LOOK = """
import getpass, importlib.util, json, os, pathlib, tempfile
caches = [os.environ[name] for name in ("XDG_CACHE_HOME", "HF_HOME", "HOME")]
for folder in (*caches, tempfile.gettempdir()):
    pathlib.Path(folder).mkdir(exist_ok=True)
    pathlib.Path(folder, "written").write_text("")
try:
    pathlib.Path("/opt/written").write_text("")
    root = "writable"
except OSError:
    root = "read-only"
heavy = [name for name in ("torch", "transformers") if importlib.util.find_spec(name)]
print(json.dumps({"user": getpass.getuser(), "uid": os.getuid(), "root": root, "heavy": heavy}))
"""

SERVE = """
import subprocess
for name in ("store", "experience", "weights", "rollout-worker", "orchestrator"):
    done = subprocess.run(["flexmarl", "serve", name], capture_output=True, text=True, timeout=60)
    print(name, done.returncode, done.stderr.strip(), flush=True)
"""


def test_flexmarl_runs_restricted_and_from_the_digest_that_was_asked_for(stage: Stage) -> None:
    cluster, images, namespace = stage.cluster, stage.images, stage.namespace()
    cluster.apply(namespace, restricted_pod("version", images["slim"], args=["version"]))
    said = cluster.complete(namespace, "version")
    assert said.startswith(f"flexmarl {version('flexmarl')}, Python 3.")
    status = cluster.get(namespace, "pod", "version")["status"]["containerStatuses"][0]
    _, pinned, digest = images["slim"].partition("@")
    assert not pinned or status["imageID"].endswith(digest)


@pytest.mark.parametrize(("image", "heavy"), [("slim", []), ("trainer", ["torch", "transformers"])])
def test_an_image_is_ours_to_write_only_where_volumes_are(
    stage: Stage, image: str, heavy: list[str]
) -> None:
    namespace = stage.namespace()
    pod = restricted_pod("look", stage.images[image], command=["python", "-c", LOOK])
    stage.cluster.apply(namespace, pod)
    assert json.loads(stage.cluster.complete(namespace, "look")) == {
        "user": "flexmarl",
        "uid": 10001,
        "root": "read-only",
        "heavy": heavy,
    }


def test_every_process_of_the_slim_image_finds_what_it_imports(stage: Stage) -> None:
    """Without settings each gets as far as to say which it lacks."""
    cluster, images, namespace = stage.cluster, stage.images, stage.namespace()
    cluster.apply(namespace, restricted_pod("all", images["slim"], command=["python", "-c", SERVE]))
    said = cluster.complete(namespace, "all")
    assert said.count("FLEXMARL_JOB_FILE: Field required") == said.count("\n") == 5, said


def test_the_trainer_image_computes(stage: Stage) -> None:
    cluster, images, namespace = stage.cluster, stage.images, stage.namespace()
    code = "import torch, transformers; print(torch.ones(2, 2).sum().item())"
    cluster.apply(
        namespace, restricted_pod("compute", images["trainer"], command=["python", "-c", code])
    )
    assert cluster.complete(namespace, "compute", seconds=300) == "4.0\n"
