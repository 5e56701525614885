"""Plays the groups of every open step: which may start, with which task, and where they belong.

`admission` decides who may start and who gets which place, `draws` keeps the books of partial
rollouts, `tasks` says what is played. Here they meet the workers and the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import grpc
import grpc.aio
import structlog
from prometheus_client import Gauge

from flexmarl.contracts.v1 import rollout_pb2
from flexmarl.data.difficulty import Tried
from flexmarl.data.notes import Note
from flexmarl.data.tasks import Task
from flexmarl.experience.client import StoredStep
from flexmarl.experience.samples import GroupId, PolicySamples
from flexmarl.orchestrator.admission import Place, open_steps
from flexmarl.orchestrator.calls import says
from flexmarl.orchestrator.choices import Choices
from flexmarl.orchestrator.confirm import confirm
from flexmarl.orchestrator.draws import Draws, lying, restored
from flexmarl.orchestrator.groups import Groups
from flexmarl.orchestrator.known import Line
from flexmarl.orchestrator.placing import SILENT, Placing, Said
from flexmarl.orchestrator.scores import solved
from flexmarl.orchestrator.staleness import Ages
from flexmarl.orchestrator.step import Parts, Step
from flexmarl.orchestrator.tasks import Tasks
from flexmarl.orchestrator.tries import Tries

OPEN_STEPS = Gauge("flexmarl_orchestrator_open_steps", "Steps of which groups are played.")
NO_FAULT = grpc.StatusCode.NOT_FOUND, SILENT
"""Of a whole group whose worker forgot it, or hangs."""

log = structlog.get_logger()


class Rollouts:
    """The groups of one incarnation. `run` must run while anything waits for them."""

    def __init__(
        self,
        parts: Parts,
        tasks: Tasks,
        incarnation: int,
        *,
        version: int,
        stored: Mapping[int, StoredStep],
        draws: str,
        refills: Mapping[str, str],
        remember: Callable[[int], Awaitable[None]],
    ) -> None:
        """`version`: at which the job stands. `stored`: what the store holds already. `draws` and
        `refills`: as they were when last kept; `remember` keeps those of a step again.
        """
        spec = parts.job.spec
        self._parts, self._tasks, self._incarnation = parts, tasks, incarnation
        self._stored, self._remember = stored, remember
        self._total, self._staleness = spec.batch.tasks_per_step, spec.pipeline.max_staleness
        self._most_refills = spec.pipeline.filter.max_refills if spec.pipeline.filter else 0
        self._trained = spec.trained_policies
        self.version = version
        """At which the job stands."""
        self._steps: dict[int, Step] = {}
        self._choices = Choices(tasks, refills)
        self._ages = Ages()
        self._draws: Draws | None = None
        self._placing: Placing | None = None
        if spec.pipeline.partial_rollout:
            fresh = Draws(spec.steps, self._total, self._staleness, version)
            self._draws = restored(draws, fresh, *lying(stored, self._total))
            self._placing = Placing(self, self._draws)
        self._tries = Tries(parts, tasks, self._choices, self._draws, incarnation)
        self._groups = Groups(self, parts.workers, parts.limits, episodes=spec.batch.group_size)

    async def run(self) -> None:
        """Until cancelled. JobFailedError, StoreLostError: it cannot go on like this."""
        self._parts.engines.on_change = self._groups.poke
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._groups.run())
            tasks.create_task(confirm(self, self._parts))
            if self._placing is not None:
                tasks.create_task(self._placing.run())

    def step(self, number: int) -> Step:
        """One that is open."""
        return self._steps[number]

    def current(self) -> Step | None:
        """That of the version at which the job stands, while it is open."""
        return self._steps.get(self.version)

    def learn(self, lines: Iterable[Line]) -> None:
        """Metrics of finished steps, each before the job stands at the next."""
        oldest = self.version
        if self._draws is not None:
            oldest = min({self._draws.next} | self._draws.known()) // self._total
        self._choices.learn(lines, oldest)

    def stand_at(self, version: int) -> None:
        """The job has this version: open the steps that may be played now."""
        spec = self._parts.job.spec
        self.version = version
        for number in open_steps(version, spec.steps, self._tasks.ahead):
            if number not in self._steps:
                self._open(number)
        OPEN_STEPS.set(len(self._steps))
        queued = [step.oldest(version) for at, step in self._steps.items() if at >= version]
        if self._draws is not None:
            queued += self._draws.whole.values()
        self._ages.see(version, in_flight=self._flying(), queued=queued)
        self._groups.poke()
        self._look()

    def _look(self) -> None:
        if self._placing is not None:
            self._placing.look()

    def _open(self, number: int) -> None:
        found = self._stored.get(number)
        stored = {at: found.notes.get(at, b"") for at in found.indexes} if found else {}
        places = [(number, index) for index in range(self._total)]
        if self._draws is None:
            tasks = {index: self._choices.task((number, index)) for _, index in places}
            step = Step(self._parts.job, number, self._total, tasks, stored)
            self._groups.add(place for place in places if place[1] not in stored)
        else:
            placed = self._draws.placed
            there = {at: note for at, note in stored.items() if (number, at) in placed}
            tasks = {
                index: self._choices.task(self._nominal(placed[number, index])) for index in there
            }
            step = Step(self._parts.job, number, self._total, tasks, there)
            gone = set(placed.values())
            fresh = {self._draw(place) for place in places} - gone
            unplaced = {draw for draw in fresh if draw >= self._draws.next}
            # What was drawn before is issued again, whichever step it was drawn for.
            self._groups.add(self._nominal(draw) for draw in unplaced | self._draws.pending)
        self._steps[number] = step

    def close(self, number: int) -> None:
        """That step is trained."""
        del self._steps[number]
        if self._draws is not None:
            self._draws.close(number)
        known = set() if self._draws is None else self._draws.known()

        def over(group: Place) -> bool:
            if self._draws is None:
                return group[0] <= number
            return self._draw(group) < self._draws.next and self._draw(group) not in known

        self._groups.forget(over)
        self._ages.forget(over)
        self._choices.close(over)
        if self._placing is not None:
            self._placing.forget(known)

    def draws(self) -> str:
        """For the store or a checkpoint; see `Position`."""
        return "" if self._draws is None else self._draws.dump()

    def refills(self, step: int | None = None) -> dict[str, str]:
        """For the store; see `Choices.dump`."""
        return self._choices.dump(step)

    def dropped(self, number: int) -> dict[int, list[Tried]]:
        """Of each place of that step: what was dropped before the group that lies there."""
        groups = {index: (number, index) for index in range(self._total)}
        if self._draws is not None:
            groups = {at: self._nominal(draw) for at, draw in self._draws.at(number).items()}
        return {index: self._choices.dropped(group) for index, group in groups.items()}

    def used_up(self, number: int) -> int:
        """How many places of that step ran out of tasks to be tried."""
        most = self._most_refills
        return sum(len(tried) >= most for tried in self.dropped(number).values()) if most else 0

    def staleness(self, number: int) -> dict[str, int]:
        """In versions, the largest of what was in flight and queued since the last step was asked
        about, and of what is trained in step `number`."""
        return self._ages.told(number - self.step(number).oldest(number))

    # What `Groups` asks of its owner.

    def request(self, group: Place) -> rollout_pb2.RunGroupRequest | None:
        request = self._tries.request(group, self.version)
        if request is not None:
            self._ages.start(group, self.version)
            self._look()  # issued again it is due later: another may have its place
        return request

    async def answer(self, group: Place, worker: str, said: rollout_pb2.GroupFinished) -> bool:
        if said.dropped:
            self._choices.drop(group, solved(said, self._parts.job.spec.solved_reward))
            await self._remember(group[0])
            return False
        if self._placing is not None:
            self._placing.whole(self._draw(group), worker, said)
        elif group[0] in self._steps:
            self._answer(group, self._choices.task(group), said)
        return True

    def _answer(
        self, place: Place, task: Task, said: rollout_pb2.GroupFinished, *, now: bool = True
    ) -> None:
        number, index = place
        if number > self.version and said.HasField("oldest_version"):
            self._ages.see(self.version, queued=[said.oldest_version])
        self._steps[number].answer(index, task, said, now=now)

    async def hopeless(self, group: Place, reason: str) -> None:
        """A group that cannot be played teaches nobody anything, and must not block the step."""
        if self._placing is not None:
            self._placing.whole(self._draw(group), "", reason)
            return
        await self._store_empty(group, self._choices.task(group), Note())
        self._steps[group[0]].give_up(group[1], self._choices.task(group), reason)

    # What `Placing` asks of its owner.

    async def store(self, worker: str, draw: int, place: Place) -> None:
        played = self._tries.wire(self._nominal(draw))
        await self._parts.workers.place(worker, played, self._tries.wire(place))

    async def store_empty(self, draw: int, place: Place) -> None:
        drawn = self._nominal(draw)
        await self._store_empty(place, self._choices.task(drawn), Note(drawn=drawn))

    def placed(self, draw: int, place: Place, said: Said) -> None:
        task, (number, index) = self._choices.task(self._nominal(draw)), place
        if number not in self._steps:
            if number < self.version:
                return  # trained before the answer came
            self._open(number)  # after a restart policies may be ahead of the job
        if isinstance(said, str):
            self._steps[number].give_up(index, task, said)
        else:
            self._answer(place, task, said, now=False)
        self._groups.poke()

    async def lost(self, draw: int, place: Place, error: grpc.aio.AioRpcError) -> None:
        log.warning("whole group is lost, played again", draw=draw, error=says(error))
        group = self._nominal(draw)
        if error.code() not in NO_FAULT:
            await self._groups.failed(group, error)  # raises what ends all of it
        if self._draws is not None and place in self._draws.placed:  # else it was trained
            self._draws.lost(place)
            self._groups.add([group])

    async def _store_empty(self, place: Place, task: Task, note: Note) -> None:
        await self._parts.experience.append_group(
            GroupId(self._incarnation, *place),
            task.id,
            [PolicySamples(policy, place[0]) for policy in self._trained],
            note.encoded(),
        )

    def missing(self, step: Step, lacking: Collection[int]) -> None:
        """The store lost these groups of an open step: they are played again."""
        log.warning("groups are missing in the store and played again", indexes=sorted(lacking))
        self._groups.reissued[step.number] += len(lacking)
        places = [(step.number, index) for index in sorted(lacking)]
        if self._draws is not None:
            places = [self._nominal(self._draws.lost(place)) for place in places]
        self._groups.add(places)

    def reissued(self, number: int) -> int:
        """Tries beyond the first since the last step was asked about."""
        counts = self._groups.reissued
        return sum(counts.pop(step) for step in [step for step in counts if step <= number])

    def _flying(self) -> Iterable[int]:
        """Versions at which the groups in flight were issued, but of steps that are trained: they
        came to be stored although nobody heard of it."""
        version, draws = self.version, self._draws
        if draws is not None:
            back = {draw for draw, (step, _) in draws.holes.items() if step < version}
            return [at for draw, at in draws.playing.items() if draw not in back]
        return self._ages.started(
            lambda group: group[0] >= version and group[1] not in self._steps[group[0]].done
        )

    def _nominal(self, draw: int) -> Place:
        return divmod(draw, self._total)

    def _draw(self, group: Place) -> int:
        return group[0] * self._total + group[1]
