"""What a pod is told to look at and to fetch before its process starts, and what it answers.

The controller writes a Preparation into the arguments of the container `preflight`; its last words
are a Report, which the kubelet keeps up to 4096 bytes of. Plain dataclasses: every
pod waits for this import, and models would take most of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

CONTAINER = "preflight"
PASSING = 75
"""Exit code where trying again may help; anything else but 0 and 3 is a fault of ours."""
PACKED = "flexmarl.io/packed"
"""Annotation of a job whose ConfigMap of files holds an archive, by the name of its entry."""
MOST_BYTES = 4000
LONGEST = 700
"""Characters of one finding's sentence."""


@dataclass(frozen=True, slots=True)
class Source:
    uri: str
    part: str = "all"
    """`model`, `tokenizer` or `all`: which of its files."""
    variables: str = ""
    """How the environment variables of its Secret begin; empty: it has none."""


@dataclass(frozen=True, slots=True)
class State:
    """Of a policy in training."""

    policy: str
    parameter_bytes: int
    """Of the weights and the optimizer, per parameter."""
    uri: str = ""
    """Whose files tell how many parameters it has."""
    parameters: int = 0
    """Or the number itself."""


@dataclass(frozen=True, slots=True)
class Preparation:
    files: str = ""
    """Folder whose content goes to `into`."""
    archive: str = ""
    """The entry of `files` that is to be unpacked instead."""
    code: Source | None = None
    """A repository, which goes to `into` as well."""
    into: str = ""
    sources: list[Source] = field(default_factory=list)
    job: str = ""
    """Whose pods all read what its first one has found of each source."""
    mounted: list[str] = field(default_factory=list)
    """pvc:// URIs, of which each must be there."""
    writable: list[str] = field(default_factory=list)
    run: str = ""
    """Folder of checkpoints, if this pod writes them."""
    experience: str = ""
    """Address of the service that the process will ask."""
    store_url: str = ""
    """Without a password; else it is in FLEXMARL_STORE_URL."""
    store: bool = False
    ca_file: str = ""
    gpus: int = 0
    gpu_resource: str = ""
    states: list[State] = field(default_factory=list)
    """In training here, if any is: shared memory has to hold them."""
    together: bool = False
    """All at the same time; else one of them, whichever."""
    shm: str = ""
    """Where that is."""

    def text(self) -> str:
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @classmethod
    def read(cls, text: str) -> Preparation:
        """Of `text`, as `text` has written it."""
        plain = json.loads(text)
        lists = {"sources": Source, "states": State}
        for key, kind in lists.items():
            plain[key] = [kind(**one) for one in plain.get(key, ())]
        if "code" in plain:
            plain["code"] = Source(**plain["code"])
        return cls(**plain)


class Kind(StrEnum):
    HOPELESS = "hopeless"
    """Starting the pod again cannot mend it: the job ends."""
    PASSING = "passing"
    """The pod tries again until it is mended."""
    WARNING = "warning"
    """The process starts nevertheless."""


@dataclass(frozen=True, slots=True)
class Found:
    reason: str
    message: str
    kind: Kind
    fetching: bool = False
    """While something was fetched; else of the pod itself."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """How far a transfer is: what its process logs from time to time, as `EVENT`. Until the
    process ends, its log is all that can be read of it."""

    EVENT: ClassVar[str] = "fetching"
    WAITING: ClassVar[str] = "waiting for another process that fetches the same"
    INTERRUPTED: ClassVar[str] = "interrupted, going on"
    """With `uri` and `why`."""

    uri: str
    done_mib: int
    of_mib: int
    mib_per_second: float


@dataclass(frozen=True, slots=True)
class Report:
    findings: list[Found] = field(default_factory=list)
    sources: int = 0
    bytes: int = 0
    """That were brought now."""
    seconds: float = 0.0

    def text(self) -> str:
        """One line that the kubelet keeps whole."""
        found = [replace(one, message=one.message[:LONGEST]) for one in self.findings]
        while True:
            line = json.dumps(asdict(replace(self, findings=found)), ensure_ascii=False)
            if len(line.encode("utf-8", "replace")) <= MOST_BYTES or not found:
                return line
            found.pop()

    @classmethod
    def read(cls, text: str) -> Report | None:
        """None where it is something else, such as the end of a traceback."""
        try:
            plain: dict[str, Any] = json.loads(text)
            return cls(
                [
                    Found(
                        str(one["reason"]),
                        str(one["message"]),
                        Kind(one["kind"]),
                        bool(one["fetching"]),
                    )
                    for one in plain["findings"]
                ],
                int(plain["sources"]),
                int(plain["bytes"]),
                float(plain["seconds"]),
            )
        except (ValueError, KeyError, TypeError):
            return None
