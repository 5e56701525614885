"""Where the job stands: what a restarted orchestrator finds in the store and goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flexmarl.orchestrator import checkpoint as checkpoints
from flexmarl.orchestrator.checkpoint import Checkpoint
from flexmarl.orchestrator.choices import FIELD
from flexmarl.orchestrator.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Position:
    """Between two steps."""

    step: int
    """Finished steps, and version of every trained policy."""
    started: float
    """Unix time of the job's first start."""
    checkpoint: Checkpoint | None = None
    """The last one: the job falls back to it."""
    idle: int = 0
    """Steps in a row that updated no policy."""
    used_up: int = 0
    """Steps in a row of which the filter dropped every task but each place's last."""
    draws: str = ""
    """Of partial rollouts: what was drawn when this step began (`draws.Draws.dump`)."""
    refills: Mapping[str, str] = field(default_factory=dict)
    """Of places whose tasks were dropped: which, and how they went (`choices.Choices.dump`)."""
    discard: bool = False
    """The job begins or fell back here and not all policies have followed: anything newer that they
    hold belongs to a history that is not the job's any more."""

    def fields(self, incarnation: int) -> dict[str, str]:
        """As the store keeps it."""
        return {
            "incarnation": str(incarnation),
            "step": str(self.step),
            "started": repr(self.started),
            "checkpoint": str(self.checkpoint.directory) if self.checkpoint else "",
            "idle": str(self.idle),
            "used_up": str(self.used_up),
            "draws": self.draws,
            "discard": "yes" if self.discard else "no",
            **self.refills,
        }


def fall_back(position: Position) -> Position:
    """The last checkpoint, or the very start: version 0 can be made again from the job file."""
    checkpoint = position.checkpoint
    step, draws = (checkpoint.step, checkpoint.draws) if checkpoint else (0, "")
    refills = _none(position.refills)
    return Position(step, position.started, checkpoint, draws=draws, refills=refills, discard=True)


def from_fields(fields: Mapping[str, str], inputs: Inputs) -> Position | None:
    """What the store keeps; None when it knows nothing of the job. InvalidJobError: see `read`."""
    if "step" not in fields:
        return None
    directory, started = fields["checkpoint"], float(fields["started"])
    refills = {name: text for name, text in fields.items() if name.startswith(FIELD)}
    if directory and not checkpoints.is_complete(Path(directory)):
        newer = from_disk(inputs, started)  # the store forgot its last moments
        if newer is not None:
            return replace(newer, refills=_none(refills))
    return Position(
        step=int(fields["step"]),
        started=started,
        checkpoint=checkpoint_at(Path(directory), inputs) if directory else None,
        idle=int(fields["idle"]),
        used_up=int(fields["used_up"]),
        draws=fields["draws"],
        refills=refills,
        discard=fields["discard"] == "yes",
    )


def _none(refills: Mapping[str, str]) -> dict[str, str]:
    """The same fields, in which nothing was dropped: a history that is not the job's any more."""
    return dict.fromkeys(refills, "[]")


def from_disk(inputs: Inputs, started: float) -> Position | None:
    """The newest checkpoint of this very submission: the store lost what it knew of the job."""
    found = checkpoints.complete_ones(inputs.checkpoints, [inputs.settings.job_uid])
    if not found:
        return None
    checkpoint = checkpoint_at(found[-1], inputs)
    return Position(checkpoint.step, started, checkpoint, draws=checkpoint.draws, discard=True)


def checkpoint_at(directory: Path, inputs: Inputs) -> Checkpoint:
    """InvalidJobError when the job cannot go on from it."""
    return checkpoints.read(directory, inputs.job.spec.trained_policies, inputs.cursor)
