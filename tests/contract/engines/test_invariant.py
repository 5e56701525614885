"""Deterministic jobs: what a turn samples is the same bit for bit whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.contract.engines.test_process import make_job, make_settings
from tests.contract.engines.test_transformers import VOCAB, expected_logprobs, make_model

from flexmarl.rollout.engines import invariant, process
from flexmarl.rollout.engines.base import Sampling, Turn, TurnRequest
from flexmarl.rollout.engines.invariant import InvariantBackend, places_agree
from flexmarl.rollout.engines.transformers_engine import TransformersBackend
from flexmarl.runtime.errors import InvalidJobError

Said = dict[str, tuple[bytes, bytes]]
"""Turn's id -> its ids and log-probs, bit for bit."""


def make_requests(count: int) -> list[TurnRequest]:
    """Of all lengths and settings; every fourth shares its prompt with the one before."""
    random = np.random.default_rng(5)
    made: list[TurnRequest] = []
    for n in range(count):
        prompt = random.integers(0, VOCAB, random.integers(1, 90)).astype(np.int32)
        if n % 4 == 3:
            prompt = made[-1].prompt_ids
        sampling = Sampling(
            max_tokens=int(random.integers(1, 30)),
            temperature=[1.0, 0.7, 0.0][n % 3],
            top_p=[1.0, 0.9][n % 2],
            top_k=[0, 20, 0, 0, 3][n % 5],
        )
        made.append(TurnRequest(str(n), prompt, int(random.integers(0, 1 << 62)), sampling))
    return made


def play(backend: InvariantBackend, arrivals: Sequence[Sequence[TurnRequest]]) -> Said:
    """Each batch arrives two steps after the one before; all run to their end."""
    said: Said = {}
    waiting = [[Turn(one, one.sampling.max_tokens) for one in batch] for batch in arrivals]
    steps = 0
    while waiting or backend.running:
        if waiting and steps % 2 == 0:
            backend.admit(waiting.pop(0))
        steps += 1
        for turn in backend.step()[1]:
            said[turn.request.id] = (turn.token_ids.tobytes(), turn.logprobs.tobytes())
    return said


def shuffled(
    requests: list[TurnRequest], sizes: Sequence[int], seed: int
) -> list[list[TurnRequest]]:
    order = np.random.default_rng(seed).permutation(len(requests)).tolist()
    batches: list[list[TurnRequest]] = []
    while order:
        size = sizes[len(batches) % len(sizes)]
        batches.append([requests[n] for n in order[:size]])
        order = order[size:]
    return batches


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", torch.float32),
        ("llama", torch.bfloat16),
        ("llama with biases", torch.float32),
        ("qwen2", torch.float32),
        ("qwen2", torch.bfloat16),
        ("gpt2", torch.float32),
    ],
)
def test_no_arrival_changes_a_bit(name: str, dtype: torch.dtype) -> None:
    requests = make_requests(24)
    model = make_model(name, dtype)
    alone: Said = {}
    one_by_one = InvariantBackend(model, [3, 5])
    for request in requests[::3]:
        alone |= play(one_by_one, [[request]])
    together = play(InvariantBackend(model, [3, 5]), [requests])
    assert len({ids for ids, _ in together.values()}) > 12
    assert alone.items() <= together.items()
    arrivals: list[tuple[int, ...]] = [(7, 1, 20), (17, 3)]
    for seed, sizes in enumerate(arrivals):
        assert play(InvariantBackend(model, [3, 5]), shuffled(requests, sizes, seed)) == together


def test_neighbours_that_are_taken_away_change_no_bit() -> None:
    requests = make_requests(40)
    model = make_model("llama")
    whole = play(InvariantBackend(model, []), [requests])
    backend = InvariantBackend(model, [])
    turns = [Turn(one, one.sampling.max_tokens) for one in requests]
    backend.admit(turns)
    ended = backend.step()[1]
    gone = [turn for turn in turns[::2] if turn not in ended]
    backend.remove(gone)
    while backend.running:
        ended += backend.step()[1]
    assert len(ended) + len(gone) == len(turns)
    for turn in ended:
        expected = whole[turn.request.id]
        assert (turn.token_ids.tobytes(), turn.logprobs.tobytes()) == expected


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_logprobs_are_those_of_a_plain_forward_pass(name: str) -> None:
    model = make_model(name)
    backend = InvariantBackend(model, [3, 5], max_concurrent_turns=40)
    turns = [Turn(one, one.sampling.max_tokens) for one in make_requests(40)]
    backend.admit(turns)
    while backend.running:
        for turn in backend.step()[1]:
            result = turn.result(0)
            expected = expected_logprobs(model, turn.request, result).float().numpy()
            np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)


def test_where_the_place_in_a_tile_matters_each_row_is_a_tile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model("llama")
    assert places_agree(model, invariant.TILE_ROWS)
    tiled = play(InvariantBackend(model, []), [make_requests(20)])
    monkeypatch.setattr(invariant, "places_agree", lambda *_: False)
    backend = InvariantBackend(model, [])
    single = play(backend, [make_requests(20)])
    assert play(InvariantBackend(model, []), shuffled(make_requests(20), (3,), 1)) == single
    assert {id_: ids for id_, (ids, _) in single.items()} == {
        id_: ids for id_, (ids, _) in tiled.items()
    }


def test_a_deterministic_job_has_this_engine_and_one_thread(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)

    def make(threads: int, deterministic: bool) -> object:
        job = make_job(engine={"transformers": {"threads": threads}})
        pipeline = job.spec.pipeline.model_copy(update={"deterministic": deterministic})
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"pipeline": pipeline})})
        return process.make_backend(settings, job, job.spec.policies[0])

    assert type(make(1, True)) is InvariantBackend
    assert type(make(1, False)) is TransformersBackend
    with pytest.raises(InvalidJobError, match=r"threads is 2; in a deterministic job it must be 1"):
        make(2, True)
