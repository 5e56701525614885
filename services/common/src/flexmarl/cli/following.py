"""The logs of a MARLJob as they are written, until it has ended: of every pod that comes, and of
what follows in it, first what prepares it, then main, then main after a restart.

What breaks off is taken up where it was, by the time that each line carries.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field

from flexmarl.cli.cluster import Cluster
from flexmarl.cli.connection import connected
from flexmarl.cli.console import CommandError, say, warn
from flexmarl.cli.jobs import ENDED, looked_for, phase_of, status_of
from flexmarl.cli.podlogs import Wanted, container_of, label_of, show_kept, state, status_in
from flexmarl.cli.refusals import Object, RefusalError, UnreachableError

AGAIN_SECONDS = 1.0
"""Between two looks at the job and its pods."""
ENDING_SECONDS = 10.0
"""For the last lines of what has ended; its node may be gone, too."""
IN_ORDER_SECONDS = 2.0
"""For the last lines of what prepares a pod, before main's; a sidecar goes on beside it."""
PATIENCE_SECONDS = 120.0
"""With an API server that is away."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Life:
    """One of a container's."""

    pod: str
    container: str
    number: int


@dataclass(slots=True)
class Stream:
    """What is read of one life."""

    label: str
    tail: int | None
    since: str = ""
    """When its last line was written."""
    task: asyncio.Task[None] | None = None

    @property
    def reads(self) -> bool:
        return self.task is not None and not self.task.done()

    def end(self) -> None:
        if self.task is not None:
            self.task.get_loop().call_later(ENDING_SECONDS, self.task.cancel)


@dataclass(slots=True)
class Follower:
    cluster: Cluster
    wanted: Wanted
    group: asyncio.TaskGroup
    streams: dict[str, tuple[Life, Stream]] = field(default_factory=dict)
    """What is read of each pod, by its uid."""
    told: set[str] = field(default_factory=set)
    has_read: bool = False

    def see(self, pods: list[Object], *, tail: int | None) -> None:
        """Read what began since the last time, and what broke off; let end what is gone."""
        for pod in pods:
            uid, life = pod["metadata"]["uid"], life_of(pod)
            if life is None:
                self.tell(f"{pod['metadata']['name']}: no log yet, {state(pod, previous=False)}")
                continue
            before, stream = self.streams.get(uid, (None, None))
            last = stream.task if stream is not None else None
            if stream is None or life != before:
                if stream is not None:
                    stream.end()
                stream = Stream(label_of(pod, life.container), tail)
                self.streams[uid] = life, stream
            elif stream.reads or not _runs(pod, life.container):
                continue
            stream.task = self.group.create_task(self._read(life, stream, last))
        for uid in self.streams.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self.streams.pop(uid)[1].end()

    def tell(self, text: str) -> None:
        """It, once."""
        if text not in self.told:
            self.told.add(text)
            warn(text)

    def end(self) -> None:
        for _, stream in self.streams.values():
            stream.end()

    async def _read(self, life: Life, stream: Stream, last: asyncio.Task[None] | None) -> None:
        self.has_read = True
        if last is not None:  # its lines come first
            await asyncio.wait({last}, timeout=IN_ORDER_SECONDS)
        tail = None if stream.since else stream.tail
        log = self.cluster.log(life.pod, life.container, follow=True, tail=tail, since=stream.since)
        try:
            async with aclosing(log) as lines:  # here, whatever ends it, not when the loop ends
                async for line in lines:
                    stamp, text = stamped(line)
                    if not stamp or stamp > stream.since:
                        stream.since = stamp or stream.since
                        say(f"{stream.label} | {text}")
        except RefusalError as error:
            if error.status in (401, 403):
                raise
            self.tell(f"{stream.label}: {error}")
        except UnreachableError:
            pass  # who looks at the pods says so


async def follow_job(name: str, namespace: str | None, context: str | None, wanted: Wanted) -> bool:
    """Whether the job is complete in the end. CommandError."""
    async with connected(namespace, context) as cluster:
        job = await looked_for(cluster, name, namespace, context)
        try:
            async with asyncio.TaskGroup() as group:
                follower = Follower(cluster, wanted, group)
                last = await _until_its_end(follower, job)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if last is None:
            warn(f"marljob {name} was deleted")
            return False
        if not follower.has_read:
            await show_kept(cluster, last, wanted)
        warn(_how_it_stands(last))
        return phase_of(last) == "Complete"


async def _until_its_end(follower: Follower, job: Object) -> Object | None:
    """The job as it is then; None: it was deleted."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    loop = asyncio.get_running_loop()
    patience, tail = loop.time() + PATIENCE_SECONDS, follower.wanted.tail
    while True:
        try:
            now = await follower.cluster.find_job(name)
            pods = await follower.cluster.pods(name, follower.wanted.role)
        except CommandError as error:
            if loop.time() > patience or not _passes(error):
                raise
            follower.tell(f"{error}. It is tried again")
        else:
            patience = loop.time() + PATIENCE_SECONDS
            if now is None or now["metadata"]["uid"] != uid:
                follower.end()
                return None
            follower.see(pods, tail=tail)
            tail = None  # of what comes from now on, everything is new
            if phase_of(now) in ENDED:
                follower.end()
                return now
            if not pods:
                follower.tell(f"{_how_it_stands(now)}; its pods are waited for")
        await asyncio.sleep(AGAIN_SECONDS)


def _passes(error: CommandError) -> bool:
    away = isinstance(error, RefusalError) and (error.status == 429 or error.status >= 500)
    return away or isinstance(error, UnreachableError)


def _how_it_stands(job: Object) -> str:
    status = status_of(job)
    why = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    return f"marljob {job['metadata']['name']} is {phase_of(job)}{why and f' ({why})'}"


def life_of(pod: Object) -> Life | None:
    """Of the container that is to be read; None: none has begun."""
    container = container_of(pod, previous=False)
    if not container:
        return None
    number = int(status_in(pod, container).get("restartCount") or 0)
    return Life(str(pod["metadata"]["name"]), container, number)


def _runs(pod: Object, container: str) -> bool:
    return bool((status_in(pod, container).get("state") or {}).get("running"))


def stamped(line: str) -> tuple[str, str]:
    """When it was written, and the line; what a node says itself has no time."""
    stamp, _, text = line.partition(" ")
    return (stamp, text) if STAMP.fullmatch(stamp) else ("", line)
