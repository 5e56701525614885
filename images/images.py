"""Builds the images of this folder and pushes them: with docker where it runs, else with buildah.

images.py build [NAME...] [--base IMAGE]
images.py push  [NAME...] --registry HOST[:PORT][/PATH]
images.py tags  [NAME...]

`push` prints `NAME: REGISTRY/flexmarl/NAME@sha256:...` for each: what a deployment should name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
DEFAULT = ("slim", "trainer")
"""Those that CI builds; the vLLM engine's is asked for by name."""


class Docker:
    def build(self, name: str, tag: str, options: list[str]) -> None:
        _run("docker", "build", *options, "-t", tag, "-f", f"images/{name}.Dockerfile", ".")

    def push(self, tag: str, target: str, *, plain_http: bool) -> str:
        if plain_http:
            sys.exit("docker takes a plain http registry only from its own configuration")
        _run("docker", "tag", tag, target)
        _run("docker", "push", "-q", target)
        said = _read("docker", "inspect", "--format", "{{json .RepoDigests}}", target)
        repository = target.rpartition(":")[0]
        known: list[str] = json.loads(said)
        return next(d.partition("@")[2] for d in known if d.startswith(f"{repository}@"))


class Buildah:
    def build(self, name: str, tag: str, options: list[str]) -> None:
        isolation = ["--isolation", "chroot", "--layers"]  # runs where containers may not
        file = f"images/{name}.Dockerfile"
        _run("buildah", "build", *isolation, *options, "-t", tag, "-f", file, ".")

    def push(self, tag: str, target: str, *, plain_http: bool) -> str:
        with tempfile.NamedTemporaryFile() as digest:
            tls = ["--tls-verify=false"] if plain_http else []
            options = ["-q", *tls, "--digestfile", digest.name]
            _run("buildah", "push", *options, tag, f"docker://{target}")
            return Path(digest.name).read_text().strip()


def engine(name: str | None) -> Docker | Buildah:
    if name == "docker" or (name is None and _works("docker", "info")):
        return Docker()
    if name == "buildah" or _works("buildah", "--version"):
        return Buildah()
    sys.exit("neither docker nor buildah runs here: start docker, or install buildah")


def version() -> str:
    return str(tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(path.name.removesuffix(".Dockerfile") for path in HERE.glob("*.Dockerfile"))
    parser.add_argument("action", choices=["build", "push", "tags"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}; else {DEFAULT}")
    parser.add_argument("--base", help="image to build on, in place of the Dockerfile's")
    parser.add_argument("--registry", help="where to push")
    parser.add_argument("--plain-http", action="store_true", help="the registry speaks no TLS")
    parser.add_argument("--engine", choices=["docker", "buildah"])
    parser.add_argument("--output", type=Path, help="also write what push prints to this file")
    arguments = parser.parse_args()
    names = arguments.names or list(DEFAULT)
    if unknown := set(names) - set(known):
        parser.error(f"no such image: {sorted(unknown)}; there are {known}")
    if arguments.action == "tags":
        print("\n".join(f"{name}: {_tag(name)}" for name in names))
        return
    chosen = engine(arguments.engine)
    if arguments.action == "build":
        for name in names:
            began = time.monotonic()
            chosen.build(name, _tag(name), _options(arguments.base))
            print(f"built {_tag(name)} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        return
    if not arguments.registry:
        parser.error("push needs --registry (make push REGISTRY=...)")
    lines = []
    for name in names:
        began = time.monotonic()
        repository = f"{arguments.registry.rstrip('/')}/flexmarl/{name}"
        target = f"{repository}:{version()}"
        digest = chosen.push(_tag(name), target, plain_http=arguments.plain_http)
        print(f"pushed {target} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        lines.append(f"{name}: {repository}@{digest}")
    print("\n".join(lines))
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def _tag(name: str) -> str:
    return f"flexmarl/{name}:{version()}"


def _options(base: str | None) -> list[str]:
    certificates = os.environ.get("SSL_CERT_FILE")
    return [
        *(["--build-arg", f"BASE={base}"] if base else []),
        *("--build-arg", f"VERSION={version()}"),
        *(["--secret", f"id=ca,src={certificates}"] if certificates else []),
    ]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=REPO, check=False, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}")


def _read(*command: str) -> str:
    return subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
