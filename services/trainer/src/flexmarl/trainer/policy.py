"""A policy in training: model, optimizer, random state, and the step they stand at.

The model stays in eval mode: dropout would make training and sampling two different policies.
Weights in bfloat16 have float32 masters, which the optimizer steps and gradients add up in; the
model holds their rounding. Where a state comes from and goes to is not decided here.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from flexmarl.contracts.policy import Correction, PolicySpec
from flexmarl.models.tokenizer import Tokenizer
from flexmarl.runtime.errors import JobFailedError
from flexmarl.tensors.layout import WEIGHTS
from flexmarl.tensors.torch_bridge import named_tensors
from flexmarl.trainer.accumulate import Sums
from flexmarl.trainer.batch import Batch, Example, pad, plan
from flexmarl.trainer.forward import Forward
from flexmarl.trainer.loss import DUAL_CLIP, corrected_loss, kl_k3

NAMED_SEQUENCES = 8
"""How many sequences an error spells out."""


class TrainedPolicy:
    """One policy between two steps, or within one: begin, then once per update fold..., update."""

    def __init__(
        self,
        spec: PolicySpec,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        correction: Correction = Correction.CLIP,
    ) -> None:
        self.spec, self.model, self.tokenizer = spec, model, tokenizer
        self.correction = correction
        self.version = 0
        self.updates = 0
        """Optimizer steps so far: a version without one counts none."""
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.forward = Forward(model)
        self.masters = _masters(model)
        self._optimizer = self._adamw()
        self.random_state = torch.get_rng_state()
        self._norm = 0.0
        """Of the gradient that has been folded so far."""

    def begin(self) -> None:
        """Forget gradients of an abandoned step, restore the policy's random state."""
        torch.set_rng_state(self.random_state)
        self._forget_gradients()

    def fold(
        self, examples: Sequence[Example], began_with: Mapping[str, torch.Tensor] | None = None
    ) -> Sums:
        """Add the gradient of the examples' summed loss; returns their sums.

        Examples without any advantage are only measured. `began_with`: the weights that the step
        began with, by their names in the model, once an update has moved the policy's own.
        JobFailedError: not a finite number.
        """
        total = Sums()
        live = [example for example in examples if example.live]
        for batch in self.batches(live):
            total.add(self._measure(batch, began_with))
        with torch.no_grad():
            for batch in self.batches([example for example in examples if not example.live]):
                total.add(self._measure(batch, began_with))
        if live:
            self._norm = torch.nn.utils.get_total_norm(_gradients(self.masters)).item()
            if not math.isfinite(self._norm):
                raise JobFailedError(
                    f"{self._where()}: the gradient is {self._norm} after sequences "
                    f"{_named([example.id for example in live])}; {_DIVERGED}"
                )
        return total

    def update(self, tokens: float) -> dict[str, float]:
        """Step the optimizer on the summed gradient divided by `tokens`; returns norm and rate."""
        training = self.spec.training
        rate = training.lr * min(1.0, (self.updates + 1) / max(1, training.warmup_steps))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = self._norm / tokens
        # Division and clipping in one pass over the gradient; 1e-6 as torch's own clipping has it.
        scale = min(1.0, training.max_grad_norm / (norm + 1e-6)) / tokens
        for master in self.masters.values():
            if master.grad is None:  # an unused expert: moments decay alike for all
                master.grad = torch.zeros_like(master)
            master.grad.mul_(scale)
        self._optimizer.step()
        self.updates += 1
        self.publish_masters()
        self.random_state = torch.get_rng_state()
        self._forget_gradients()
        return {"grad_norm": norm, "lr": rate}

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a later process needs to go on bit for bit: views, not copies.

        `weights/<state dict name>` as engines load them, `optimizer/...` for the trainer alone.
        """
        state = {WEIGHTS + n: tensor.detach() for n, tensor in named_tensors(self.model).items()}
        for name, master in self.masters.items():
            if master is not self.model.get_parameter(name):
                state[f"optimizer/master/{name}"] = master.data
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"optimizer/{moment}/{name}"] = self._optimizer.state[master][moment]
        state["optimizer/updates"] = torch.tensor([self.updates], dtype=torch.int64)
        state["optimizer/random_state"] = self.random_state
        return state

    def restore(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Copy `state` in. KeyError, RuntimeError: not the state of such a model."""
        own = self.state()
        if own.keys() != state.keys():
            raise KeyError(f"tensors that differ: {sorted(own.keys() ^ state.keys())[:5]}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self.version = version
        self.updates = int(own["optimizer/updates"])
        for entry in self._optimizer.state.values():
            entry["step"].fill_(self.updates)
        self.begin()

    @torch.no_grad()
    def publish_masters(self) -> None:
        """Round stepped masters into the model."""
        for name, master in self.masters.items():
            parameter = self.model.get_parameter(name)
            if parameter is not master:
                parameter.copy_(master)

    def batches(self, examples: Sequence[Example]) -> list[Batch]:
        """Padded batches of like length that fit in memory; every example once."""
        lengths = [len(example.token_ids) - 1 for example in examples]
        return [
            pad([examples[index] for index in chosen], self.tokenizer.pad_id)
            for chosen in plan(lengths, self.forward.batch_tokens)
        ]

    def _measure(self, batch: Batch, began_with: Mapping[str, torch.Tensor] | None) -> Sums:
        """The sums of one batch; adds its gradient where gradients are on."""
        training = self.spec.training
        logprobs, entropy = self.forward(batch)
        device, dtype = logprobs.device, logprobs.dtype
        fresh = logprobs.detach()
        ages = self.version - batch.versions
        prox, own = fresh, batch.comparable & (ages == 0)
        if began_with is not None:
            decoupled = self.correction is Correction.DECOUPLED
            if decoupled or not batch.comparable.all():
                prox = self.forward.at(began_with, batch)
            if not decoupled:  # nor compared by chance, where some token of the batch needs it
                own = np.zeros_like(own)
        comparable = torch.from_numpy(batch.comparable).to(device)
        compared = torch.from_numpy(own).to(device)
        sampled = torch.from_numpy(batch.old_logprobs).to(device, dtype)
        # Another distribution's log-probs say nothing about the ratio: it began the step as 1.
        old = torch.where(comparable, sampled, prox)
        advantages = torch.from_numpy(batch.advantages).to(device, dtype)
        terms = corrected_loss(
            self.correction,
            logprobs,
            prox,
            old,
            advantages,
            clip_low=training.clip_low,
            clip_high=training.clip_high,
            dual_clip=DUAL_CLIP,
            cap=training.correction_cap,
        )
        gap = (prox - old).abs() * compared
        # One transfer of all numbers.
        measured = torch.stack(
            [
                terms.loss.detach().sum(),
                entropy.sum(),
                kl_k3(old, fresh).sum(),
                terms.clipped.sum().to(dtype),
                terms.weight.sum(),
                terms.capped.sum().to(dtype),
                compared.sum().to(dtype),
                gap.sum(),
                gap.max(),
                (terms.ratio * compared).sum(),
                (terms.ratio * compared).max(),
            ]
        ).tolist()
        if not (math.isfinite(measured[0]) and bool(torch.isfinite(fresh).all())):
            bad = ~(torch.isfinite(fresh) & torch.isfinite(terms.loss.detach()))
            rows = sorted(set(batch.rows[bad.cpu().numpy()].tolist())) or range(len(batch.ids))
            raise JobFailedError(
                f"{self._where()}: the loss is {measured[0]}, not finite in sequences "
                f"{_named([batch.ids[row] for row in rows])}; {_DIVERGED}"
            )
        if torch.is_grad_enabled():
            terms.loss.sum().backward()
        sums = Sums(len(fresh), len(batch.ids), *measured)
        sums.staleness, sums.staleness_max = int(ages.sum()), int(ages.max())
        sums.stale = int((ages > 0).sum())
        return sums

    def _forget_gradients(self) -> None:
        for master in self.masters.values():
            master.grad = None
        self.model.zero_grad(set_to_none=True)
        self._norm = 0.0

    def _adamw(self) -> torch.optim.AdamW:
        training = self.spec.training
        matrices = [master for master in self.masters.values() if master.ndim > 1]
        vectors = [master for master in self.masters.values() if master.ndim <= 1]
        optimizer = torch.optim.AdamW(
            # Norms and biases are not decayed.
            [
                {"params": matrices, "weight_decay": training.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=training.lr,
            betas=training.betas,
            fused=True,
        )
        for master in self.masters.values():  # now, so that the state's layout never changes
            optimizer.state[master] = {
                "step": torch.zeros((), dtype=torch.float32, device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
        return optimizer

    def _where(self) -> str:
        return f"policy {self.spec.name}, step {self.version}"


_DIVERGED = (
    "the policy has diverged or its weights are damaged: try a lower training.lr or "
    "training.maxGradNorm, or float32 instead of bfloat16"
)


def _masters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What the optimizer steps: the parameters, or float32 copies that collect their gradients."""
    return {
        name: _master(parameter) if parameter.dtype == torch.bfloat16 else parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _master(parameter: torch.nn.Parameter) -> torch.Tensor:
    master = parameter.detach().float().requires_grad_()

    def collect(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    parameter.register_post_accumulate_grad_hook(collect)
    return master


def _gradients(masters: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [master.grad for master in masters.values() if master.grad is not None]


def _named(ids: Sequence[str]) -> str:
    more = len(ids) - NAMED_SEQUENCES
    return ", ".join(ids[:NAMED_SEQUENCES]) + (f" and {more} more" if more > 0 else "")
