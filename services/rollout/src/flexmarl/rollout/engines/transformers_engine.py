"""Continuous batching over a Hugging Face model on the CPU, in the engine's one thread."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from flexmarl.contracts.v1 import weights_pb2
from flexmarl.rollout.engines.base import Limits, Turn, WeightsAccess
from flexmarl.rollout.engines.batch import Batch
from flexmarl.rollout.engines.decoding import padded
from flexmarl.rollout.engines.kv_cache import KVCache
from flexmarl.rollout.engines.llama_decoding import decoder_for
from flexmarl.rollout.engines.sampling import SamplingRows, draw, processed_logprobs, uniforms
from flexmarl.runtime.errors import JobFailedError
from flexmarl.tensors.torch_bridge import checksum_of, load_into, named_tensors

PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, that one forward pass takes; bounds its memory."""
COLUMN_STEP = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """Of every decode step, whoever is there; prompts go through the model one by one then."""

    rows: int
    columns: int
    """No turn is longer."""


class TransformersBackend:
    """`Backend` over a model.

    A new turn's prompt but its last token goes through the model at once (each distinct prompt one
    time, however many turns share it); the last token is the turn's first in the running batch.
    Nothing is kept of a finished turn, so no cached prefix can outlive a weight update.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Sequence[int],
        *,
        max_concurrent_turns: int = 512,
        access: WeightsAccess = WeightsAccess(),  # noqa: B008 - frozen
        shape: Shape | None = None,
    ) -> None:
        """Without `shape`, those who are there decide the shapes of forward passes."""
        self._model = model
        self._shape = shape
        self._decoder = decoder_for(model)
        self.limits = Limits(
            context=model.config.max_position_embeddings,
            vocab_size=model.config.vocab_size,
            max_concurrent_turns=max_concurrent_turns,
        )
        self._access = access
        rows = self._padded(max_concurrent_turns)
        self._batch = Batch(rows, self.limits.vocab_size, eos_ids)
        self._kv = KVCache(model.dtype, self.limits.context)
        self._sampling = SamplingRows(None, None, None, None)

    @property
    def running(self) -> int:
        return self._batch.count

    def progress(self, turn: Turn) -> int:
        return int(self._batch.sampled[self._batch.rows_of([turn])[0]])

    def delay(self) -> float:
        return 0.0

    @torch.inference_mode()
    def admit(self, turns: Sequence[Turn]) -> None:
        for chunk, ids in _chunks(turns, 0 if self._shape else PREFILL_TOKENS):
            self._place(chunk, self._decoder.prefill(ids))
        self._choose_sampling()

    def _place(
        self, sharing: Sequence[Sequence[Turn]], prefilled: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Append turns as rows; those of `sharing[u]` get row u of `prefilled`."""
        turns = [turn for group in sharing for turn in group]
        index = [u for u, group in enumerate(sharing) for _ in group]
        batch = self._batch
        if self._shape:
            columns = self._shape.columns
        else:
            longest = max(len(turn.request.prompt_ids) + turn.max_tokens for turn in turns)
            columns = -(-longest // COLUMN_STEP) * COLUMN_STEP
        rows = self._padded(batch.count + len(turns))
        self._kv.reserve(prefilled, rows, columns, batch.count)
        self._kv.place(batch.count, prefilled, torch.tensor(index))
        batch.add(turns)

    @torch.inference_mode()
    def step(self) -> tuple[int, list[Turn]]:
        count = self._batch.count
        width = self._shape.rows if self._shape else count
        tiles = [self._sample(slice(first, first + width)) for first in range(0, count, width)]
        tokens = np.concatenate([tile[0] for tile in tiles])[:count]
        chosen = np.concatenate([tile[1] for tile in tiles])[:count]
        if not np.isfinite(chosen).all():
            raise JobFailedError(
                "the model gives log-probs that are not finite: its weights have diverged, or are "
                f"too large for {self._model.dtype}"
            )
        ended = self._batch.record(tokens, chosen)
        return count, self._take(ended) if len(ended) else []

    def _sample(self, rows: slice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The next token of each row, and its log-prob."""
        batch, sampling = self._batch, self._sampling.of(rows)
        lengths = batch.lengths[rows]
        columns = self._shape.columns if self._shape else int(lengths.max()) + 1
        logits = self._decoder.decode(
            torch.from_numpy(batch.last[rows]),
            torch.from_numpy(lengths),
            self._kv.window(rows, columns),
        )
        logprobs = processed_logprobs(logits, sampling)
        positions = batch.before[rows] + batch.sampled[rows]
        uniform = torch.from_numpy(uniforms(batch.seeds[rows], positions))
        tokens, chosen = draw(logprobs, uniform, sampling.greedy)
        return tokens.numpy(), chosen.numpy()

    def _padded(self, rows: int) -> int:
        """With the idle ones that fill the last tile."""
        return -(-rows // self._shape.rows) * self._shape.rows if self._shape else rows

    @torch.inference_mode()
    def remove(self, turns: Sequence[Turn]) -> None:
        self._take(self._batch.rows_of(turns))

    def _take(self, rows: NDArray[np.int64]) -> list[Turn]:
        columns = int(self._batch.lengths[: self._batch.count].max())
        turns, to, source = self._batch.take(rows)
        if len(to):
            self._kv.move(torch.from_numpy(to), torch.from_numpy(source), columns)
        self._choose_sampling()
        return turns

    def _choose_sampling(self) -> None:
        """What the rows ask for; what none asks for is not computed."""
        batch, count = self._batch, self._batch.count
        rows = self._padded(count)

        def column(array: NDArray[Any], off: NDArray[np.bool_]) -> torch.Tensor | None:
            return None if off.all() else torch.from_numpy(array[:rows].copy())

        self._sampling = SamplingRows(
            greedy=column(batch.greedy, ~batch.greedy[:count]),
            temperature=column(batch.temperature, batch.temperature[:count] == 1),
            top_k=column(batch.top_k, batch.top_k[:count] == self.limits.vocab_size),
            top_p=column(batch.top_p, np.isinf(batch.top_p[:count])),
        )

    async def load(self, ref: weights_pb2.WeightsRef, executor: Executor) -> tuple[float, str]:
        access = self._access
        _, seconds, transport = await load_into(
            self._model, ref, access.shm_dir, access.transport, access.token, executor=executor
        )
        return seconds, transport

    def checksum(self) -> str:
        return checksum_of(named_tensors(self._model))


def _chunks(
    turns: Sequence[Turn], most_tokens: int
) -> Iterator[tuple[list[list[Turn]], torch.Tensor]]:
    """Turns by equal prompts, and those prompts [U, L] without their last token, shortest first.

    A prompt that is longer than `most_tokens` is alone.
    """
    sharing: defaultdict[bytes, list[Turn]] = defaultdict(list)
    for turn in turns:
        sharing[turn.request.prompt_ids.tobytes()].append(turn)
    groups = sorted(sharing.values(), key=lambda group: len(group[0].request.prompt_ids))
    while groups:
        # the longest of a chunk is its last: take as many as fit
        size = 1
        while size < len(groups):
            longest = len(groups[size][0].request.prompt_ids)
            if (size + 1) * longest > most_tokens:
                break
            size += 1
        chunk, groups = groups[:size], groups[size:]
        prompts = [torch.from_numpy(g[0].request.prompt_ids[:-1].astype(np.int64)) for g in chunk]
        # a prompt of one token leaves nothing; its one padding column is overwritten by it
        yield chunk, torch.nn.functional.pad(padded(prompts), (0, int(not len(prompts[-1]))))
