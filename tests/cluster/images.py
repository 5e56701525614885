"""Images for a node without the internet, by buildah: its base, its pause container, ours."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import prune
from .layout import PAUSE_IMAGE, REPO, Layout

BASE = "localhost/flexmarl-test/base:bookworm-1"
"""Stands in for a python:slim; the number changes with the list of packages."""
PACKAGES = "python3,python3-venv,ca-certificates"
SUITE = "bookworm"


class Builder:
    def __init__(self, where: Layout) -> None:
        self._where = where
        self._scratch = where.state / "scratch"

    def environment(self) -> dict[str, str]:
        """Makes plain `buildah` use a store of our own, which a warm run finds again."""
        store = self._where.state / "buildah"
        settings = self._where.state / "storage.conf"
        self._scratch_folder()
        settings.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{store}"\nrunroot = "{store}-run"\n'
        )
        return {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(settings),
            "TMPDIR": str(self._scratch),
        }

    @contextmanager
    def alone(self) -> Iterator[None]:
        """From build to push: all working trees share the store and its tags."""
        with (self._scratch_folder() / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def build(self, names: list[str]) -> None:
        self.base()
        before = prune.image_ids(self.environment())
        self._run([sys.executable, "images/images.py", "build", *names, f"--base={BASE}"])
        prune.buildah(before, prune.image_ids(self.environment()), self.environment())

    def base(self) -> None:
        known = subprocess.run(
            ["buildah", "inspect", "--type=image", BASE],
            env=self.environment(),
            check=False,
            capture_output=True,
        )
        if known.returncode == 0:
            return
        with tempfile.TemporaryDirectory(dir=self._scratch_folder()) as directory:
            root = f"{directory}/root.tar"
            options = ["--quiet", "--variant=minbase", f"--include={PACKAGES}"]
            self._run(["mmdebstrap", *options, SUITE, root])
            self._from_scratch(directory, "ADD root.tar /", BASE)

    def pause(self, archive: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._scratch_folder()) as directory:
            program = self._where.programs / "pause"
            os.link(program, f"{directory}/pause")
            self._from_scratch(directory, 'COPY pause /pause\nENTRYPOINT ["/pause"]', PAUSE_IMAGE)
        self._run(["buildah", "push", "-q", PAUSE_IMAGE, f"oci-archive:{archive}:{PAUSE_IMAGE}"])

    def _from_scratch(self, directory: str, content: str, tag: str) -> None:
        Path(directory, "Dockerfile").write_text(f"FROM scratch\n{content}\n")
        self._run(["buildah", "build", "-q", "--isolation", "chroot", "-t", tag, directory])

    def _scratch_folder(self) -> Path:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return self._scratch

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, env=self.environment(), check=True, cwd=REPO, stdout=sys.stderr)
