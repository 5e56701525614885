"""What is remembered of a job from look to look, while it lives."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from flexmarl.controller.asking import Unanswered
from flexmarl.controller.names import Manifest
from flexmarl.controller.observed import Finding, Progress
from flexmarl.controller.reading import Read, document, read

SILENT_SECONDS = 60.0
"""An orchestrator that is ready and has not answered for so long is told of."""

log = structlog.get_logger()


@dataclass(slots=True)
class Known:
    uid: str
    leader: str | None = None
    """Where its orchestrator could be asked at the last look: whether it can is wanted all the
    time, of all jobs."""
    unanswered: float | None = None
    """Since when that does not answer."""
    silence: str = ""
    """Why, once it has not for long."""
    progress: Progress | None = None
    findings: tuple[Finding, ...] = ()
    """Of what could not be applied at the last look."""
    failing: float | None = None
    """Since when each look ended in a refusal."""
    was: tuple[Manifest, Read] | None = None
    """The document that was read last, and what came of it: that is most of a quiet look."""

    def read(self, manifest: Manifest) -> Read:
        plain = document(manifest)
        if self.was is None or self.was[0] != plain:
            self.was = plain, read(manifest)
        return self.was[1]

    def led_by(self, leader: str | None) -> None:
        if leader != self.leader:
            self.leader, self.unanswered, self.silence = leader, None, ""

    def hears(self, said: Progress | Unanswered) -> bool:
        """Of its orchestrator; whether that is news."""
        if isinstance(said, Unanswered):
            return self._misses(said.why)
        news = bool(self.silence) or self.progress != said
        self.progress, self.unanswered, self.silence = said, None, ""
        return news

    def _misses(self, why: str) -> bool:
        now = time.monotonic()
        self.unanswered = self.unanswered or now
        if self.silence or now - self.unanswered < SILENT_SECONDS:
            return False
        self.silence = why
        log.warning("an orchestrator does not answer", uid=self.uid, at=self.leader, why=why)
        return True
