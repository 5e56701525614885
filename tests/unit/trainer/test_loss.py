"""Everything that needs torch but no service: losses, the model's forward pass, the policy."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.job import (
    Dtype,
    ModelSource,
    PolicySpec,
    TrainingSpec,
)
from flexmarl.models.causal_lm import build_model
from flexmarl.models.tokenizer import load_tokenizer
from flexmarl.runtime.errors import JobFailedError
from flexmarl.trainer.batch import Example, pad
from flexmarl.trainer.forward import Forward
from flexmarl.trainer.loss import kl_k1, kl_k2, kl_k3, policy_loss, token_logprobs
from flexmarl.trainer.policy import TrainedPolicy
from flexmarl.trainer.warm_start import batches

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_kl_reference_values() -> None:
    logprobs, reference = tensor(-1, -2, -0.1), tensor(-1.5, -1, -0.1)
    assert kl_k1(logprobs, reference).tolist() == pytest.approx([0.5, -1, 0])
    assert kl_k2(logprobs, reference).tolist() == pytest.approx([0.125, 0.5, 0])
    assert kl_k3(logprobs, reference).tolist() == pytest.approx([0.1065, 0.7183, 0], abs=5e-5)


def test_clipped_loss_reference_value() -> None:
    terms = policy_loss(tensor(-0.5, -1.5, -1), tensor(-1, -1, -1), tensor(1, 1, 1), **CLIP)
    assert terms.loss.mean().item() == pytest.approx(-0.9622, abs=5e-5)
    assert terms.clipped.tolist() == [True, False, False]


def test_dual_clip_reference_value() -> None:
    terms = policy_loss(tensor(2), tensor(0), tensor(-1), **CLIP, dual_clip=3.0)
    assert terms.loss.item() == pytest.approx(3.0)
    assert terms.clipped.tolist() == [True]


@given(
    st.lists(
        st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-3, 3)),
        min_size=1,
        max_size=20,
    ),
    st.data(),
)
@settings(deadline=None)
def test_loss_and_gradient_are_sums_over_tokens(
    rows: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))

    def run(part: list[tuple[float, float, float]]) -> tuple[float, list[float]]:
        new = torch.tensor([row[0] for row in part], dtype=torch.float64, requires_grad=True)
        old = tensor(*(row[1] for row in part))
        loss = policy_loss(new, old, tensor(*(row[2] for row in part)), **CLIP, dual_clip=3.0).loss
        loss.sum().backward()  # type: ignore[no-untyped-call]
        assert new.grad is not None
        return loss.sum().item(), new.grad.tolist()

    whole, gradient = run(rows)
    first, second = run(rows[:cut]), run(rows[cut:])
    assert first[0] + second[0] == pytest.approx(whole, rel=1e-12, abs=1e-12)
    assert first[1] + second[1] == pytest.approx(gradient, rel=1e-12)


def test_logprobs_are_those_at_the_sampling_temperature() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 7, dtype=torch.float64)
    temperatures = torch.tensor([0.6, 1.0, 2.0])
    targets = torch.tensor([1, 2, 3])
    logprobs, entropy = token_logprobs(logits, lambda x: x, targets, temperatures, 7)
    for row, (temperature, target) in enumerate(zip(temperatures, targets, strict=True)):
        weights = (logits[row] / temperature.to(torch.float64)).exp()
        probabilities = weights / weights.sum()
        assert logprobs[row].item() == pytest.approx(probabilities[target].log().item())
        spread = -(probabilities * probabilities.log()).sum()
        assert entropy[row].item() == pytest.approx(spread.item())


def test_chunks_change_neither_values_nor_gradients() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 31, bias=False, dtype=torch.float64)
    targets, temperatures = torch.randint(31, (13,)), torch.rand(13) + 0.5

    def run(chunk: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        hidden = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
        head.zero_grad()
        logprobs, entropy = token_logprobs(
            hidden, head, targets, temperatures, 31, chunk_elements=chunk
        )
        logprobs.sum().backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        return logprobs.detach(), entropy, hidden.grad

    for whole, chunked in zip(run(1 << 20), run(31 * 4), strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-12, atol=1e-12)


def test_a_long_sequence_keeps_no_logits_for_the_backward_pass() -> None:
    """[S, V] of logits and softmax is what runs out of memory: only the chunk's inputs stay."""
    hidden = torch.randn(512, 4, requires_grad=True)
    head = torch.nn.Linear(4, 1000, bias=False)
    saved: list[int] = []

    def keep(kept: torch.Tensor) -> torch.Tensor:
        saved.append(kept.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        token_logprobs(
            hidden,
            head,
            torch.zeros(512, dtype=torch.int64),
            torch.ones(512),
            1000,
            chunk_elements=16_000,
        )
    assert max(saved, default=0) < 16_000


def make_policy(dtype: Dtype = Dtype.FLOAT64, **training: object) -> TrainedPolicy:
    spec = PolicySpec(
        name="solver",
        model=ModelSource(uri="random://llama?hidden=16&layers=2&heads=2", dtype=dtype),
        training=TrainingSpec.model_validate({"lr": 1e-2, **training}),
    )
    tokenizer = load_tokenizer(spec, Path())
    return TrainedPolicy(spec, build_model(spec, Path(), 3, tokenizer), tokenizer)


def make_examples(count: int = 9, *, live: bool = True, seed: int = 0) -> list[Example]:
    random = np.random.default_rng(seed)
    examples = []
    for number in range(count):
        length = int(random.integers(3, 20))
        start = int(random.integers(1, length - 1))
        trained = length - start
        advantages = random.normal(size=trained) if live else np.zeros(trained)
        examples.append(
            Example(
                id=f"1/0/0/{number}/solver/0",
                token_ids=random.integers(0, 255, length).astype(np.int32),
                positions=np.arange(start, length),
                old_logprobs=np.full(trained, -5.5, np.float32),
                advantages=advantages,
                temperatures=np.full(trained, random.choice([0.7, 1.0]), np.float32),
                comparable=np.ones(trained, np.bool_),
                versions=np.zeros(trained, np.int64),
            )
        )
    return examples


def gradients(policy: TrainedPolicy) -> dict[str, torch.Tensor]:
    return {n: m.grad.clone() for n, m in policy.masters.items() if m.grad is not None}


def assert_same_gradient(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    scale = max(gradient.abs().max().item() for gradient in left.values())
    for name, gradient in left.items():
        torch.testing.assert_close(gradient, right[name], rtol=1e-12, atol=1e-12 * scale)


def test_padding_order_and_splitting_leave_the_gradient_alone() -> None:
    policy, examples = make_policy(), make_examples()
    policy.begin()
    whole = policy.fold(examples)
    expected = gradients(policy)
    for parts in (
        [[example] for example in examples],  # no padding at all
        [examples[::-1]],
        [examples[5:], examples[:2], examples[2:5]],
    ):
        policy.begin()
        sums = [policy.fold(part) for part in parts]
        assert_same_gradient(expected, gradients(policy))
        assert sum(s.loss for s in sums) == pytest.approx(whole.loss, rel=1e-12)
        assert sum(s.entropy for s in sums) == pytest.approx(whole.entropy, rel=1e-12)
        assert max(s.gap_max for s in sums) == pytest.approx(whole.gap_max, rel=1e-12)


def test_right_padding_needs_no_attention_mask() -> None:
    policy, examples = make_policy(), make_examples(6)
    together, _ = policy.forward(pad(examples, policy.tokenizer.pad_id))
    alone = [policy.forward(pad([example]))[0] for example in examples]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_examples_without_advantage_are_measured_and_leave_no_gradient() -> None:
    policy, dead = make_policy(), make_examples(live=False)
    policy.begin()
    sums = policy.fold(dead)
    assert sums.tokens == sum(len(example.positions) for example in dead)
    assert sums.loss == 0
    assert sums.entropy > 0
    assert gradients(policy) == {}


def test_an_architecture_that_treats_its_logits_falls_back_to_them() -> None:
    policy = make_policy()
    plain = Forward(policy.model)
    batch = pad(make_examples(4))
    expected = plain(batch)[0]
    policy.model.register_forward_hook(lambda module, args, out: _halved(out))
    treated = Forward(policy.model)
    assert not torch.allclose(treated(batch)[0], expected)
    torch.testing.assert_close(plain(batch)[0], expected)


def _halved(out: object) -> object:
    out.logits = out.logits / 2  # type: ignore[attr-defined]
    return out


def test_a_step_raises_what_was_rewarded() -> None:
    policy = make_policy(Dtype.FLOAT32)
    (example,) = make_examples(1)
    batch = pad([example])
    before = policy.forward(batch)[0].detach()
    policy.begin()
    good = np.arange(len(example.positions)) % 2 == 0
    rewarded = Example(
        id=example.id,
        token_ids=example.token_ids,
        positions=example.positions,
        old_logprobs=before.numpy().astype(np.float32),
        advantages=np.where(good, 1.0, -1.0),
        temperatures=example.temperatures,
        comparable=example.comparable,
        versions=example.versions,
    )
    sums = policy.fold([rewarded])
    assert sums.gap_max < 1e-5
    policy.update(sums.tokens)
    change = (policy.forward(batch)[0].detach() - before).numpy()
    assert change[good].sum() > change[~good].sum()


def test_truncated_sampling_has_ratio_one_and_no_gap() -> None:
    policy, examples = make_policy(), make_examples(3)
    for example in examples:
        example.comparable[:] = False
    policy.begin()
    sums = policy.fold(examples)
    assert (sums.compared, sums.gap, sums.clipped, sums.kl) == (0, 0, 0, 0)
    assert gradients(policy)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
def test_a_restored_state_goes_on_bit_for_bit(dtype: Dtype) -> None:
    def train(policy: TrainedPolicy, seed: int) -> None:
        policy.begin()
        sums = policy.fold(make_examples(seed=seed))
        policy.update(sums.tokens)
        policy.version += 1

    straight = make_policy(dtype, warmup_steps=3)
    train(straight, 1)
    saved = {name: tensor.clone() for name, tensor in straight.state().items()}
    train(straight, 2)

    resumed = make_policy(dtype, warmup_steps=3)
    train(resumed, 5)  # something else: all of it is overwritten
    resumed.restore(1, saved)
    train(resumed, 2)
    assert (resumed.version, resumed.updates) == (2, 2)
    for name, value in straight.state().items():
        assert torch.equal(value, resumed.state()[name]), name


def test_bfloat16_weights_have_float32_masters_that_small_steps_move() -> None:
    policy = make_policy(Dtype.BFLOAT16, lr=1e-6)
    before = {name: master.detach().clone() for name, master in policy.masters.items()}
    policy.begin()
    sums = policy.fold(make_examples())
    policy.update(sums.tokens)
    name = "model.layers.0.mlp.up_proj.weight"
    assert policy.masters[name].dtype == torch.float32
    assert not torch.equal(policy.masters[name], before[name])
    assert torch.equal(policy.model.get_parameter(name), policy.masters[name].to(torch.bfloat16))


def test_bfloat16_gradients_add_up_in_float32() -> None:
    policy, examples = make_policy(Dtype.BFLOAT16), make_examples(40)
    policy.begin()
    for example in examples:
        policy.fold([example])
    assert {master.grad.dtype for master in policy.masters.values() if master.grad is not None} == {
        torch.float32
    }
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_learning_rate_warms_up_and_gradients_are_clipped() -> None:
    policy = make_policy(Dtype.FLOAT32, lr=0.1, warmup_steps=4, max_grad_norm=1e-3)
    rates = []
    for seed in range(6):
        policy.begin()
        sums = policy.fold(make_examples(seed=seed))
        rates.append(policy.update(sums.tokens)["lr"])
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_a_loss_that_is_not_finite_names_step_and_sequences() -> None:
    policy = make_policy(Dtype.FLOAT32)
    policy.version = 7
    with torch.no_grad():
        policy.model.get_parameter("lm_head.weight").fill_(float("nan"))
    with pytest.raises(JobFailedError, match=r"solver, step 7: .* 1/0/0/0/solver/0"):
        policy.fold(make_examples(2))


def test_a_gradient_that_is_not_finite_names_step_and_sequences() -> None:
    policy = make_policy(Dtype.FLOAT32)
    (example,) = make_examples(1)
    example.advantages[:] = 1e30  # whose square is beyond float32
    example.old_logprobs[:] = -5
    with pytest.raises(JobFailedError, match=r"solver, step 0: .* 1/0/0/0/solver/0"):
        policy.fold([example])


def test_warm_start_batches_are_full_and_go_through_every_epoch() -> None:
    order = batches(5, 4, 5, Random(1))
    assert [len(batch) for batch in order] == [4] * 5
    flat = [index for batch in order for index in batch]
    assert all(sorted(flat[at : at + 5]) == list(range(5)) for at in range(0, 20, 5))
    assert order == batches(5, 4, 5, Random(1))
    assert batches(3, 2, 2, None) == [[0, 1], [2, 0]]
