"""Sampling that is the same bit for bit whoever else is in the batch, for deterministic jobs.

Kernels choose the order in which they add up by the shapes they are given, so here the turn alone
decides all shapes that it meets: each distinct prompt goes through the model by itself, and turns
decode in tiles of fixed width, idle rows included, over a number of columns that follows from the
prompt and max_tokens. What is left, the place in the tile, is tried out at the start: where it
matters to a machine's kernels, each row is a tile of its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

import torch
from transformers import PreTrainedModel

from flexmarl.contracts.v1 import weights_pb2
from flexmarl.rollout.engines.base import Turn, WeightsAccess
from flexmarl.rollout.engines.kv_cache import KVCache
from flexmarl.rollout.engines.llama_decoding import decoder_for
from flexmarl.rollout.engines.sampling import SamplingRows, processed_logprobs
from flexmarl.rollout.engines.transformers_engine import Shape, TransformersBackend

TILE_ROWS = 16
FEWEST_COLUMNS = 64


class InvariantBackend:
    """`Backend` with a lane for each number of columns, powers of two, in use."""

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Sequence[int],
        *,
        max_concurrent_turns: int = 512,
        access: WeightsAccess = WeightsAccess(),  # noqa: B008 - frozen
    ) -> None:
        rows = TILE_ROWS if places_agree(model, TILE_ROWS) else 1
        context = model.config.max_position_embeddings
        make = partial(
            TransformersBackend,
            model,
            eos_ids,
            max_concurrent_turns=max_concurrent_turns,
            access=access,
        )
        sizes = {context}
        columns = FEWEST_COLUMNS
        while columns < context:
            sizes.add(columns)
            columns *= 2
        self._lanes = {size: make(shape=Shape(rows, size)) for size in sorted(sizes)}
        self._first = next(iter(self._lanes.values()))
        self.limits = self._first.limits

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self._lanes.values())

    def progress(self, turn: Turn) -> int:
        return self._lane(turn).progress(turn)

    def delay(self) -> float:
        return 0.0

    def admit(self, turns: Sequence[Turn]) -> None:
        for lane, own in self._by_lane(turns):
            lane.admit(own)

    def step(self) -> tuple[int, list[Turn]]:
        steps = [lane.step() for lane in self._lanes.values() if lane.running]
        return sum(count for count, _ in steps), [turn for _, ended in steps for turn in ended]

    def remove(self, turns: Sequence[Turn]) -> None:
        for lane, own in self._by_lane(turns):
            lane.remove(own)

    async def load(self, ref: weights_pb2.WeightsRef, executor: Executor) -> tuple[float, str]:
        return await self._first.load(ref, executor)  # they share the model

    def checksum(self) -> str:
        return self._first.checksum()

    def _lane(self, turn: Turn) -> TransformersBackend:
        """Decided by the turn alone: the one with the fewest columns that are enough."""
        length = len(turn.request.prompt_ids) + turn.max_tokens
        return next(lane for columns, lane in self._lanes.items() if length <= columns)

    def _by_lane(self, turns: Sequence[Turn]) -> list[tuple[TransformersBackend, list[Turn]]]:
        own: defaultdict[TransformersBackend, list[Turn]] = defaultdict(list)
        for turn in turns:
            own[self._lane(turn)].append(turn)
        return list(own.items())


@torch.inference_mode()
def places_agree(model: PreTrainedModel, rows: int) -> bool:
    """Whether equal rows of a tile get equal log-probs, bit for bit."""
    decoder, context = decoder_for(model), model.config.max_position_embeddings
    columns = min(FEWEST_COLUMNS, context)
    length = columns // 2
    layers = decoder.prefill(torch.arange(length)[None] % model.config.vocab_size)
    kv = KVCache(model.dtype, context)
    kv.reserve(layers, rows, columns, 0)
    kv.place(0, layers, torch.zeros(rows, dtype=torch.int64))
    token, position = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), length)
    logits = decoder.decode(token, position, kv.window(slice(rows), columns))
    logprobs = processed_logprobs(logits, SamplingRows(None, None, None, None))
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    return all(torch.equal(each, each[:1].expand_as(each)) for each in (logprobs, cumulative))
