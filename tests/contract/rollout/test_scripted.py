"""The worker in front of the scripted engine: the same seeds, the same words."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flexmarl.contracts.policy import ScriptedArgs
from flexmarl.contracts.reading import load_job
from flexmarl.contracts.v1 import engine_pb2_grpc, rollout_pb2
from flexmarl.data.sources import load_records
from flexmarl.data.tasks import Task
from flexmarl.experience.samples import GroupId
from flexmarl.models.bytes_tokenizer import BytesTokenizer
from flexmarl.rollout.checks import check_code, code_of
from flexmarl.rollout.engines.base import Loaded
from flexmarl.rollout.engines.scheduler import ScheduledEngine
from flexmarl.rollout.engines.scripted import ScriptedBackend
from flexmarl.rollout.engines.server import EngineService
from flexmarl.rollout.groups import GroupOrder, Outcome, RouteTo
from flexmarl.rollout.process import working
from flexmarl.runtime.grpc import serving

DEBATE = """
agents: [{name: a, policy: solver}, {name: b, policy: solver}]
workflow: {name: debate, config: {rounds: 3}}
"""


@asynccontextmanager
async def scripted(address: str, policy: str = "solver") -> AsyncIterator[str]:
    backend = ScriptedBackend(ScriptedArgs(), BytesTokenizer())
    async with (
        ScheduledEngine(backend, Loaded(policy, 1, backend.checksum())) as engine,
        serving(
            lambda server: engine_pb2_grpc.add_EngineServicer_to_server(
                EngineService(engine), server
            ),
            address,
            token="secret",
            drain_seconds=1,
        ) as bound,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(engine.run())
        yield bound
        running.cancel()


async def test_a_group_is_the_same_alone_and_among_others(stage: Any, sockets: Any) -> None:
    async with scripted(f"unix://{sockets}/s.sock") as address, stage(DEBATE) as played:

        async def play(index: int) -> list[str]:
            request = played.request(purpose=rollout_pb2.EVAL, transcripts=True)
            request.id.index, request.seed = index, index
            request.routes[0].engines[:] = [address]
            finished = await played.stub.RunGroup(request, timeout=30)
            assert {episode.outcome for episode in finished.episodes} == {"ok"}
            assert finished.forks == 0
            return [episode.transcript for episode in finished.episodes]

        alone = await play(3)
        among = await asyncio.gather(*(play(index) for index in range(8)))
        assert among[3] == alone
        assert len({transcript for group in among for transcript in group}) == 32
        turns = json.loads(alone[0])["turns"]
        assert [turn["agent"] for turn in turns] == ["a", "b"] * 3
        assert turns[2]["messages"][1]["content"] == turns[0]["text"]


async def test_sampled_ids_are_the_text_that_was_read(stage: Any, sockets: Any) -> None:
    tokens = BytesTokenizer()
    async with scripted(f"unix://{sockets}/s.sock") as address, stage(DEBATE) as played:
        request = played.request(transcripts=True)
        request.routes[0].engines[:] = [address]
        finished = await played.stub.RunGroup(request, timeout=30)
        for episode, result in enumerate(finished.episodes):
            said = [turn["text"] for turn in json.loads(result.transcript)["turns"]]
            for place, agent in enumerate("ab"):
                (sequence,) = (
                    each
                    for each in played.samples["solver"].sequences
                    if (each.episode, each.agent) == (episode, agent)
                )
                spans = [sequence.token_ids[turn.start : turn.end] for turn in sequence.turns]
                assert [tokens.decode(span.tolist()) for span in spans] == said[place::2]


async def test_the_example_of_ones_own_code_plays(
    repo: Path, sockets: Path, kept_groups: Any
) -> None:
    path = repo / "examples/custom/job.yaml"
    job = load_job(path)
    assert check_code(code_of(job), path.parent) == []
    tasks = load_records(job.spec.data, path.parent, 0)
    async with (
        scripted(f"unix://{sockets}/s.sock", "scout") as scout,
        scripted(f"unix://{sockets}/g.sock", "guesser") as guesser,
        working(job, path.parent, "secret", kept_groups) as worker,
    ):
        results = await asyncio.gather(
            *(
                worker.run_group(
                    GroupOrder(
                        GroupId(1, 1, index),
                        Task(str(index), record),
                        8,
                        index,
                        (RouteTo("scout", 1, (scout,)), RouteTo("guesser", 1, (guesser,))),
                        train=True,
                        transcripts=False,
                    )
                )
                for index, record in enumerate(tasks)
            )
        )
    sys.path.remove(str(path.parent))
    sys.modules.pop("guessing")
    played = [episode for result in results for episode in result.episodes]
    assert {episode.outcome for episode in played} == {Outcome.OK}
    assert {len(episode.turns) for episode in played} <= {2, 3, 4, 5}
    assert len({episode.rewards["guesser"] for episode in played}) > 1
    assert all(len(group["scout"].sequences) == 8 for group in kept_groups.groups.values())
