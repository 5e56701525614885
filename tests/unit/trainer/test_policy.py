"""A policy in training: gradients, optimizer steps, state."""

from random import Random

import numpy as np
import pytest
import torch
from tests.unit.trainer.conftest import (
    assert_same_gradient,
    gradients,
    make_examples,
    make_policy,
)

from flexmarl.contracts.sources import Dtype
from flexmarl.runtime.errors import JobFailedError
from flexmarl.trainer.batch import Example, pad
from flexmarl.trainer.forward import Forward
from flexmarl.trainer.policy import TrainedPolicy
from flexmarl.trainer.warm_start import batches


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


@pytest.mark.parametrize("most", [1e-3, 1e3])
def test_an_update_steps_on_the_mean_over_all_tokens_whatever_the_folds(most: float) -> None:
    """The summed gradient is divided once by the global count, then clipped: written down from the
    formulas, and held against the optimizer's first moments."""
    policy, examples = make_policy(max_grad_norm=most), make_examples()
    batch = pad(examples, policy.tokenizer.pad_id)
    ratio = torch.exp(policy.forward(batch)[0] - torch.from_numpy(batch.old_logprobs))
    advantages = torch.from_numpy(batch.advantages)
    pessimistic = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    floor = torch.where(advantages < 0, 3 * advantages, -torch.inf)
    tokens = len(batch.targets)
    mean = -torch.maximum(pessimistic, floor).sum() / tokens
    masters = policy.masters
    expected = dict(zip(masters, torch.autograd.grad(mean, list(masters.values())), strict=True))
    norm = torch.nn.utils.get_total_norm(expected.values()).item()

    policy.begin()
    for part in (examples[:1], examples[1:6], examples[6:]):
        policy.fold(part)
    assert policy.update(tokens)["grad_norm"] == pytest.approx(norm, rel=1e-6)
    scale = (1 - policy.spec.training.betas[0]) * min(1.0, most / norm)
    state = policy.state()
    for name, gradient in expected.items():
        moment = state[f"optimizer/exp_avg/{name}"]
        torch.testing.assert_close(moment, gradient * scale, rtol=1e-5, atol=1e-6 * scale * norm)


def test_the_learning_rate_warms_up() -> None:
    policy = make_policy(Dtype.FLOAT32, lr=0.1, warmup_steps=4)
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
