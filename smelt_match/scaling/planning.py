"""Planning: the allocation of a budget, the models nearest to it, and how many runs resolve a difference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from smelt_match.budget.surface import Surface
from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.frontier import Coefficients

MOST_SEEDS = 1_000_000


@dataclass(frozen=True)
class Candidate:
    """A model that a budget could be spent on.

    Attributes:
        name, layout: What it is.
        F, S: Training FLOPs per token and sparsity.
    """

    name: str
    layout: str
    F: float
    S: float


@dataclass(frozen=True)
class Choice:
    """A candidate at a budget.

    Attributes:
        candidate: The model.
        tokens: D = C / F.
        optimal_flops: F* at its sparsity.
        loss: Predicted loss, in nats.
        excess: Loss above the frontier at its sparsity, in nats.
        outside: Whether F, S, D or C lie outside the surface's ranges.
    """

    candidate: Candidate
    tokens: float
    optimal_flops: float
    loss: float
    excess: float
    outside: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """F / F*."""
        return self.candidate.F / self.optimal_flops if self.optimal_flops else math.inf

    @property
    def distance(self) -> float:
        """|ln F / F*|."""
        return abs(math.log(self.ratio)) if 0 < self.ratio < math.inf else math.inf


def choices(surface: Surface, C: float, candidates: Iterable[Candidate]) -> list[Choice]:
    """The candidates at a budget, nearest to their F* first."""
    k = Coefficients.of(surface)
    found = []
    for one in candidates:
        D = C / one.F
        loss = float(k.loss(one.F, one.S, D))
        checks = (
            ("C", surface.flops, C), ("F", surface.flops_per_token, one.F), ("S", surface.sparsity, one.S),
            ("D", surface.tokens, D),
        )  # fmt: skip
        outside = tuple(name for name, ends, value in checks if ends and not ends[0] <= value <= ends[1])
        excess = max(0.0, loss - float(k.frontier(C, one.S)))
        found.append(Choice(one, D, float(k.optimal_flops(C, one.S)), loss, excess, outside))
    return sorted(found, key=lambda choice: (choice.distance, choice.candidate.name))


def power(difference: float, spread: float, seeds: int, level: float) -> float:
    """Chance that a two-sided two-sample t test sees a difference, with so many seeds a side.

    Args:
        difference, spread: In nats: what is there, and the standard deviation over seeds.
        seeds: Of each side, at least 2.
        level: Of the test, such as 0.05.
    """
    from scipy.stats import nct, t

    freedom = 2 * seeds - 2
    shift = difference / spread * math.sqrt(seeds / 2)
    bar = float(t.ppf(1 - level / 2, freedom))
    if shift > bar + 40:  # beyond this the noncentral t loses digits, and the chance is 1
        return 1.0
    # Significant with the wrong sign: by symmetry, since `cdf` is NaN where this underflows.
    return float(nct.sf(bar, freedom, shift) + nct.sf(bar, freedom, -shift))


def seeds_needed(difference: float, spread: float, chance: float = 0.8, level: float = 0.05) -> int:
    """Fewest seeds a side for which a difference is seen with some chance; `AnswerIsNo` above a million."""
    low, high = 1, 2
    while power(difference, spread, high, level) < chance:
        low, high = high, 2 * high
        if low > MOST_SEEDS:
            raise AnswerIsNo(
                f"a difference of {difference:g} nats takes more than {MOST_SEEDS:,} seeds a side at a spread of "
                f"{spread:g}",
                "a larger difference, or runs that share their data order",
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, spread, middle, level) >= chance else (middle, high)
    return high
