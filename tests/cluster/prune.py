"""Drops what a new image has replaced: torch alone is some gigabytes, three times over."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .layout import Layout


def registry(where: Layout) -> None:
    """Blobs that no tag leads to. Only while the registry is down."""
    if not (where.kept / "registry/docker").exists():
        return
    subprocess.run(
        ["docker-registry", "garbage-collect", "--delete-untagged", where.run / "registry.yml"],
        check=True,
        capture_output=True,
    )


def containerd(ctr: Callable[[list[str]], str], images: Iterable[str]) -> None:
    """Images that those pushed last, `images`, have replaced.

    Only where the new one was pulled: until then the old one holds the layers that both share.
    """
    lines = [line.split() for line in ctr(["images", "ls"]).splitlines()[1:]]
    digests = {line[0]: line[2] for line in lines if len(line) > 2}
    new = dict(image.split("@") for image in images if image in digests)
    old = {
        digest
        for name, digest in digests.items()
        if digest != new.get(name.partition("@")[0], digest)
    }
    # The same image also goes by the digest of its configuration: that name holds it, too.
    if names := [name for name, digest in digests.items() if digest in old]:
        ctr(["images", "rm", *names])


def buildah(before: Mapping[str, str], after: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Image ids by tag: one that lost its tag goes, with the layers that were its alone."""
    for tag, image in before.items():
        if after.get(tag) != image:
            subprocess.run(["buildah", "rmi", image], env=env, check=False, capture_output=True)


def image_ids(env: Mapping[str, str]) -> dict[str, str]:
    said = subprocess.run(
        ["buildah", "images", "--no-trunc", "--format", "{{.Name}}:{{.Tag}} {{.ID}}"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    pairs = (line.split() for line in said.splitlines())
    return {tag: image for tag, image in pairs if not tag.startswith("<none>")}


def pushed(output: Path) -> dict[str, str]:
    """What `images.py push --output` wrote; nothing if it never did."""
    if not output.exists():
        return {}
    return dict(line.split(": ", 1) for line in output.read_text().splitlines())
