"""The rows of the running batch stay those of their turns, whatever comes and goes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexmarl.rollout.engines.base import FinishReason, Sampling, Turn, TurnRequest
from flexmarl.rollout.engines.batch import Batch

VOCAB = 50


def make_turn(id_: int, max_tokens: int, **sampling: object) -> Turn:
    prompt = np.arange(1, 2 + id_ % 5, dtype=np.int32)
    wanted = Sampling(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return Turn(TurnRequest(str(id_), prompt, id_, wanted), max_tokens)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=30))
def test_every_turn_ends_with_exactly_its_own_tokens(arrivals: list[tuple[int, int]]) -> None:
    """Step by step turns arrive; the token of turn t at position n is (7t + n) mod 50."""
    batch = Batch(200, VOCAB, [])
    where: dict[int, Turn] = {}  # stands for the rows of the KV cache
    ended: list[Turn] = []
    made = 0
    for count, max_tokens in [*arrivals, *[(0, 1)] * 6]:
        turns = [make_turn(made + n, max_tokens) for n in range(count)]
        made += count
        if turns:
            for n, turn in enumerate(turns):
                where[batch.count + n] = turn
            batch.add(turns)
        if not batch.count:
            continue
        rows = range(batch.count)
        assert [where[row] for row in rows] == batch.turns
        seeds = batch.seeds[: batch.count].astype(np.int64)
        tokens = (7 * seeds + batch.sampled[: batch.count]) % VOCAB
        done = batch.record(tokens, tokens.astype(np.float32))
        assert (batch.last[: batch.count] == tokens).all()
        gone, to, source = batch.take(done)
        for here, there in zip(to.tolist(), source.tolist(), strict=True):
            where[here] = where[there]
        ended += gone
    assert batch.count == 0
    assert sorted(int(turn.request.id) for turn in ended) == list(range(made))
    for turn in ended:
        expected = [(7 * turn.request.seed + n) % VOCAB for n in range(turn.max_tokens)]
        assert turn.token_ids.tolist() == expected == turn.logprobs.tolist()
        assert turn.finish_reason is FinishReason.LENGTH


def test_eos_and_the_turns_own_stop_tokens_end_it() -> None:
    batch = Batch(4, VOCAB, [9, 10])
    batch.add([make_turn(0, 5), make_turn(1, 5, stop_token_ids=(7, 8)), make_turn(2, 5)])
    ended = batch.record(np.array([10, 8, 8]), np.zeros(3, np.float32))
    assert ended.tolist() == [0, 1]
    assert [turn.finish_reason for turn in batch.turns[:2]] == [FinishReason.STOP] * 2


def test_a_new_turn_does_not_inherit_the_stop_tokens_of_its_row() -> None:
    batch = Batch(2, VOCAB, [])
    batch.add([make_turn(0, 1, stop_token_ids=(7,))])
    batch.take(batch.record(np.array([1]), np.zeros(1, np.float32)))
    batch.add([make_turn(1, 5)])
    assert not len(batch.record(np.array([7]), np.zeros(1, np.float32)))


def test_greedy_turns_ignore_temperature_top_k_and_top_p() -> None:
    batch = Batch(2, VOCAB, [])
    batch.add([make_turn(0, 1, temperature=0.0, top_k=3, top_p=0.5)])
    assert batch.greedy[0]
    assert (batch.temperature[0], batch.top_k[0], batch.top_p[0]) == (1.0, VOCAB, np.inf)
