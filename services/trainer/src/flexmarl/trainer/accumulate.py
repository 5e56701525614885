"""Which groups of a step are folded next, and what the folded ones add up to. Pure.

In deterministic mode the micro-batches are fixed: indexes [0, m), [m, 2m), ... each folded once
all of it has arrived, so that overlap changes when a fold happens but not what it adds. Otherwise
groups are folded as they arrive, as many together as make a fold worth its fixed cost. The gradient
is then the same up to rounding: relative to its norm within 1e-12 in float64, 1e-5 in float32 and
2e-2 in bfloat16.

A step of several updates splits its groups into equal parts by index. By arrival the first update
would get the short episodes and the last one the long ones, and no two runs would end alike. Each
part has an accumulator and a denominator of its own. Replayed groups are spread over the parts and
stand first in each: they are there before anything is played.

Groups that teach nothing (all advantages 0) count their tokens in the denominator like all others:
the loss is the mean over everything that was sampled, and its scale does not depend on how many
groups happened to agree. With `deadGroups: exclude` they weigh nothing there either, for each
policy by itself. Either way they are counted in the metrics, measured without gradients, and an
update of nothing else takes no optimizer step: neither weights nor moments move.
"""

from dataclasses import dataclass, field, fields

from flexmarl.trainer.batch import Prepared

FOLD_FLOPS = 4e9
"""A fold of less costs more in fixed overhead than it gains by overlapping."""


def worthwhile_tokens(parameters: int) -> int:
    """Tokens from which one forward and backward pass is worth starting."""
    return max(1, int(FOLD_FLOPS / (6 * parameters)))


class FoldOrder:
    """Groups that have arrived and not been folded yet."""

    def __init__(
        self, groups: int, micro_batch: int, *, deterministic: bool, overlap: bool, tokens: int
    ) -> None:
        self._groups, self._micro_batch = groups, micro_batch
        self._deterministic, self._overlap, self._tokens = deterministic, overlap, tokens
        self._waiting: dict[int, Prepared] = {}
        self._arrived = self._arrived_tokens = self._taken_tokens = 0
        self._next = 0

    @property
    def missing(self) -> int:
        """Groups that have not arrived."""
        return self._groups - self._arrived

    @property
    def done(self) -> bool:
        """Whether every group has arrived and been taken."""
        return not self.missing and not self._waiting

    @property
    def wanted(self) -> int:
        """How many of the missing groups the next fold needs, rather fewer: asked again costs less
        than a fold that waits. May be read while groups are added by another thread."""
        if not self._overlap or not self._arrived:
            return self.missing
        if self._deterministic:
            window = range(self._next, min(self._next + self._micro_batch, self._groups))
            return min(self.missing, sum(index not in self._waiting for index in window) or 1)
        over = (self._arrived_tokens - self._taken_tokens) % self._tokens
        lacking = (self._tokens - over) * self._arrived // max(1, self._arrived_tokens)
        return min(self.missing, max(lacking, self._micro_batch - len(self._waiting), 1))

    def add(self, index: int, group: Prepared) -> None:
        self._waiting[index] = group
        self._arrived += 1
        self._arrived_tokens += group.input_tokens

    def take(self) -> list[Prepared]:
        """The groups to fold now, each handed out once; empty: wait for more."""
        if self.missing and not self._overlap:
            return []
        taken = self._take_fixed() if self._deterministic else self._take_any()
        self._taken_tokens += sum(group.input_tokens for group in taken)
        return taken

    def _take_fixed(self) -> list[Prepared]:
        wanted = range(self._next, min(self._next + self._micro_batch, self._groups))
        if not all(index in self._waiting for index in wanted):
            return []
        self._next = wanted.stop
        return [self._waiting.pop(index) for index in wanted]

    def _take_any(self) -> list[Prepared]:
        sizes = [group.input_tokens for group in self._waiting.values()]
        number = tokens = 0
        while number < self._micro_batch or tokens < self._tokens:
            if number == len(sizes):
                if self.missing:
                    return []
                break
            tokens += sizes[number]
            number += 1
        if not self.missing and sum(sizes[number:]) < self._tokens:
            number = len(sizes)  # the last ones alone would not be worth it
        return [self._waiting.pop(index) for index in list(self._waiting)[:number]]


class StepOrder:
    """The groups of a step on their way into its updates, `groups` of its own and replayed ones."""

    def __init__(
        self,
        groups: int,
        replayed: int,
        updates: int,
        micro_batch: int,
        *,
        deterministic: bool,
        overlap: bool,
        tokens: int,
    ) -> None:
        if groups % updates:
            raise ValueError(f"{groups} groups do not split into {updates} equal updates")
        self._own, self._updates = groups // updates, updates
        self._replayed = [len(range(part, replayed, updates)) for part in range(updates)]
        self._parts = [
            FoldOrder(
                first + self._own,
                micro_batch,
                deterministic=deterministic,
                overlap=overlap,
                tokens=tokens,
            )
            for first in self._replayed
        ]
        self._overlap, self._current = overlap, 0

    @property
    def missing(self) -> int:
        """Groups that have not arrived, of all updates."""
        return sum(part.missing for part in self._parts)

    @property
    def wanted(self) -> int:
        """How many of the missing groups are likely to be needed before anything can go on."""
        if not self._overlap:
            return self.missing
        parts = self._parts[self._current :]
        return next((part.wanted for part in parts if part.missing), 0)

    @property
    def ready(self) -> bool:
        """Whether everything of the current update has been taken: it is due."""
        return not self.done and self._parts[self._current].done

    @property
    def done(self) -> bool:
        """Whether every update is over."""
        return self._current == self._updates

    def add(self, index: int, group: Prepared) -> None:
        """The step's own group `index` has arrived."""
        part, place = divmod(index, self._own)
        self._parts[part].add(self._replayed[part] + place, group)

    def add_replayed(self, number: int, group: Prepared) -> None:
        place, part = divmod(number, self._updates)
        self._parts[part].add(place, group)

    def take(self) -> list[Prepared]:
        """The groups of the current update to fold now; empty: it is due, or waits for more."""
        if self.done or (self.missing and not self._overlap):
            return []
        return self._parts[self._current].take()

    def advance(self) -> None:
        """The current update is over."""
        self._current += 1


@dataclass(slots=True)
class Sums:
    """What micro-batches add up to; nothing in it is an average."""

    tokens: float = 0
    sequences: float = 0
    loss: float = 0
    entropy: float = 0
    kl: float = 0
    clipped: float = 0
    weight: float = 0  # of the correction
    capped: float = 0  # tokens whose weight was cut off
    # Tokens that the step's own version sampled from its whole distribution, measured before the
    # first update: training and sampling log-probs are those of the same weights.
    compared: float = 0
    gap: float = 0  # of these: |training - sampling log-prob|
    gap_max: float = 0
    ratio: float = 0
    ratio_max: float = 0
    staleness: int = 0  # versions between the trained one and the one that sampled
    staleness_max: int = 0
    stale: int = 0  # tokens of older versions

    def add(self, other: "Sums") -> None:
        for entry in fields(self):
            mine, its = getattr(self, entry.name), getattr(other, entry.name)
            maximum = entry.name.endswith("_max")
            setattr(self, entry.name, max(mine, its) if maximum else mine + its)


@dataclass(slots=True)
class StepTotals:
    """What was folded so far, of a step or of one of its updates."""

    exclude_dead: bool = False
    """Whether dead groups weigh nothing in the denominator."""
    sums: Sums = field(default_factory=Sums)
    groups: int = 0
    folds: int = 0
    excluded: int = 0
    dead_groups: int = 0
    """Groups with tokens and not one advantage."""
    dead_tokens: int = 0
    empty_groups: int = 0
    """Groups in which the policy took no turn, or no scored one."""
    live: bool = False

    def add(self, folded: list[Prepared], sums: Sums) -> None:
        self.sums.add(sums)
        self.folds += 1
        for group in folded:
            self.groups += 1
            self.excluded += group.excluded
            self.live |= group.live
            if not group.examples:
                self.empty_groups += 1
            elif not group.live:
                self.dead_groups += 1
                self.dead_tokens += group.tokens

    @property
    def denominator(self) -> float:
        """What the summed loss is divided by, once."""
        return self.sums.tokens - (self.dead_tokens if self.exclude_dead else 0)

    @property
    def gap_mean(self) -> float:
        """Mean |training - sampling log-prob| of the tokens where the two can be compared."""
        return self.sums.gap / max(1, self.sums.compared)

    def metrics(self) -> dict[str, float]:
        """What the step reports; every mean is over the whole step, all updates, divided once."""
        sums = self.sums
        tokens, compared = max(1, sums.tokens), max(1, sums.compared)
        return {
            "loss": sums.loss / max(1, self.denominator),
            "entropy": sums.entropy / tokens,
            "kl": sums.kl / tokens,
            "clip_fraction": sums.clipped / tokens,
            "logprob_gap_mean": self.gap_mean,
            "logprob_gap_max": sums.gap_max,
            "ratio_mean": sums.ratio / compared,
            "ratio_max": sums.ratio_max,
            "correction_weight_mean": sums.weight / tokens,
            "correction_capped_fraction": sums.capped / tokens,
            "staleness_mean": sums.staleness / tokens,
            "staleness_max": float(sums.staleness_max),
            "stale_tokens": float(sums.stale),
            "tokens": sums.tokens,
            "loss_tokens": self.denominator,
            "compared_tokens": sums.compared,
            "sequences": sums.sequences,
            "excluded_sequences": float(self.excluded),
            "dead_groups": float(self.dead_groups),
            "dead_tokens": float(self.dead_tokens),
            "empty_groups": float(self.empty_groups),
            "folds": float(self.folds),
        }
