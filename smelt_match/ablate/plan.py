"""What a sweep will cost, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from smelt_match.ablate.extent import Extent
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.rates import MOST_RATES
from smelt_match.ablate.short import RUNGS, SHORT
from smelt_match.spec.model import ModelSpec

# float32: a weight, its gradient and AdamW's two moments; on disk the gradient is left out.
STATE_BYTES = 16
CHECKPOINT_BYTES = 12
CHECKPOINTS = 4  # at most in an arm's folder at a time: two of the trunk, two of a branch
WEIGHT_BYTES = 4  # and the weights at the end of each branch


@dataclass(frozen=True)
class Plan:
    """The points of a sweep with what training them takes."""

    points: tuple[Point, ...]
    seeds: int
    extent: Extent
    shortlist: int = 1
    lr_sweep: bool = False

    @property
    def arms(self) -> int:
        """Models to train."""
        return len(self.points) * self.seeds

    def flops(self, point: Point) -> Fraction:
        """Training FLOPs of one arm, by the convention of the sweep; validation is not counted."""
        return point.best.counted.budget.flops * self.extent.tokens

    @property
    def flops_total(self) -> Fraction:
        """Training FLOPs of all arms, short runs left out."""
        return sum((self.flops(point) for point in self.points), Fraction(0)) * self.seeds

    @property
    def flops_short_runs(self) -> Fraction:
        """The most that short runs can come to: those of a shortlist, and those of a sweep of learning rates."""
        competing = [each for point in self.points if len(point.candidates) > 1 for each in point.candidates]
        rated = [point.best for point in self.points] if self.lr_sweep else []
        runs = Fraction(sum(RUNGS), RUNGS[-1]) * _flops(competing) + MOST_RATES * _flops(rated)
        return runs * self.extent.tokens_trunk / SHORT

    def params(self, spec: ModelSpec) -> int:
        """Stored parameters, the embedding and the output head included where the vocabulary is known."""
        point = next(point for point in self.points if point.best.spec is spec)
        vocabulary = spec.vocab_size or self.extent.vocab_size or 0
        copies = 1 if spec.tie_word_embeddings else 2
        return point.best.counted.budget.params + copies * vocabulary * spec.hidden_size

    @property
    def bytes_memory(self) -> int:
        """Weights, gradients and optimizer of the largest arm, in float32; activations come on top."""
        return STATE_BYTES * max(self.params(point.best.spec) for point in self.points)

    @property
    def bytes_disk(self) -> int:
        """Checkpoints of all arms, at most."""
        each = sum(self.params(point.best.spec) for point in self.points)
        weights = WEIGHT_BYTES * max(1, len(self.extent.forks))
        return (CHECKPOINTS * CHECKPOINT_BYTES + weights) * each * self.seeds


@dataclass(frozen=True)
class Probe:
    """A few measured steps.

    Attributes:
        point: The name of the point that ran.
        tokens_per_second: Of one arm in one slot.
        bytes_peak: The most memory that it held.
    """

    point: str
    tokens_per_second: float
    bytes_peak: int


def _flops(candidates: Sequence[Candidate]) -> Fraction:
    return sum((candidate.counted.budget.flops for candidate in candidates), Fraction(0))


def probed_point(points: Sequence[Point]) -> Point:
    """The point with the most visits: small kernels make it the slowest for its FLOPs."""
    return max(points, key=lambda point: len(point.variant.layout.visits))


def seconds(plan: Plan, probe: Probe, missing: Sequence[str], slots: int) -> float:
    """How long the arms of some points take on this device, scaled by FLOPs from the one that was measured.

    Args:
        missing: The point of each arm that is to be trained.
        slots: Arms side by side.
    """
    flops = {point.name: float(plan.flops(point)) for point in plan.points}
    each = [plan.extent.tokens / probe.tokens_per_second * flops[name] / flops[probe.point] for name in missing]
    ends = [0.0] * slots
    for duration in each:  # the next arm goes where a slot is free first
        index = ends.index(min(ends))
        ends[index] += duration
    return max(ends)
