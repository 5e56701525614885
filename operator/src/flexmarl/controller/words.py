"""How pods, and what others said of them, are put into sentences; pure."""

from __future__ import annotations

from collections.abc import Iterable

from flexmarl.controller.names import WORKER
from flexmarl.controller.observed import Ended, Pod

LONGEST = 400
"""Of the words of others in a sentence."""
ENDED = ("Succeeded", "Failed")
"""Phases of pods that others take the place of."""
FIELDS = {WORKER: "worker"}
"""Roles that the spec calls otherwise."""


def named(pods: Iterable[Pod]) -> str:
    names = sorted(pod.name for pod in pods)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def field(role: str) -> str:
    """Where the spec speaks of a role."""
    return f"spec.roles.{FIELDS.get(role, role)}"


def last_words(pod: Pod) -> str:
    """Why its container ended, if that can be told; else the last line that it said, shortened."""
    if pod.ended is None:
        return ""
    _, why = cause(pod)
    if why:
        return why
    lines = [line.strip() for line in pod.ended.message.splitlines() if line.strip()]
    return shortened(lines[-1]) if lines else pod.ended.reason


def cause(pod: Pod) -> tuple[str, str]:
    """Of its container's end a reason, and a sentence without its subject; both empty: its own
    words must do."""
    ended = pod.ended or Ended(0)
    if ended.reason == "OOMKilled":
        container = f"limits.memory of {ended.container} in {field(pod.role)}.template"
        if ended.memory:
            return "OutOfMemory", (
                f"killed for want of memory, its limit is {ended.memory}; raise {container}"
            )
        return "OutOfMemory", (
            f"killed for want of memory on its node, for it has no limit; give {container}, and "
            "requests that hold what it needs"
        )
    if "exec format error" in ended.message:
        return "WrongArchitecture", (
            f"its image is not for the architecture of {pod.node or 'its node'} (exec format "
            "error); push one that is, or choose other nodes by the role's nodeSelector"
        )
    if ended.unanswered:
        return "StartupTooSlow", (
            f"ended by its startup probe, for it did not answer within {ended.unanswered} s; see "
            "its log, and if it only needs longer create the job anew with a larger "
            f"{field(pod.role)}.startupSeconds"
        )
    return "", ""
