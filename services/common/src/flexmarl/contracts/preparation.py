"""What a pod is told to look at and to fetch before its process starts, and what it answers.

The controller writes a Preparation into the arguments of the container `preflight`; its last words
are a Report, which the kubelet keeps up to 4096 bytes of. Light to import: a pod waits for it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

CONTAINER = "preflight"
PASSING = 75
"""Exit code where trying again may help; anything else but 0 and 3 is a fault of ours."""
PACKED = "flexmarl.io/packed"
"""Annotation of a job whose ConfigMap of files holds an archive, by the name of its entry."""
MOST_BYTES = 4000
LONGEST = 700
"""Characters of one finding's sentence."""


class Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Source(Plain):
    uri: str
    part: Literal["model", "tokenizer", "all"] = "all"
    variables: str = ""
    """How the environment variables of its Secret begin; empty: it has none."""


class State(Plain):
    """Of a policy in training."""

    policy: str
    parameter_bytes: int
    """Of the weights and the optimizer, per parameter."""
    uri: str = ""
    """Whose files tell how many parameters it has."""
    parameters: int = 0
    """Or the number itself."""


class Preparation(Plain):
    files: str = ""
    """Folder whose content goes to `into`."""
    archive: str = ""
    """The entry of `files` that is to be unpacked instead."""
    code: Source | None = None
    """A repository, which goes to `into` as well."""
    into: str = ""
    sources: list[Source] = []
    mounted: list[str] = []
    """pvc:// URIs, of which each must be there."""
    writable: list[str] = []
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
    states: list[State] = []
    """In training here, if any is: shared memory has to hold them."""
    together: bool = False
    """All at the same time; else one of them, whichever."""
    shm: str = ""
    """Where that is."""


class Kind(StrEnum):
    HOPELESS = "hopeless"
    """Starting the pod again cannot mend it: the job ends."""
    PASSING = "passing"
    """The pod tries again until it is mended."""
    WARNING = "warning"
    """The process starts nevertheless."""


class Found(Plain):
    reason: str
    message: str
    kind: Kind
    fetching: bool = False
    """While something was fetched; else of the pod itself."""


class Report(Plain):
    findings: list[Found] = []
    sources: int = 0
    bytes: int = 0
    """That were brought now."""
    seconds: float = 0.0

    def text(self) -> str:
        """One line that the kubelet keeps whole."""
        found = [one.model_copy(update={"message": one.message[:LONGEST]}) for one in self.findings]
        while True:
            line = self.model_copy(update={"findings": found}).model_dump_json()
            if len(line.encode()) <= MOST_BYTES or not found:
                return line
            found.pop()

    @classmethod
    def read(cls, text: str) -> Report | None:
        """None where it is something else, such as the end of a traceback."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None
