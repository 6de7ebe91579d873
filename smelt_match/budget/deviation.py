"""How far two budgets are apart, signed and relative to the baseline, as exact rationals."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from smelt_match.budget.ledger import Budget


@dataclass(frozen=True)
class Deviation:
    """Signed relative deviations (candidate − baseline) / baseline.

    ``attention`` is the attention part of the FLOPs: where it is 0, the FLOPs deviation is the same at every
    context length up to the constant part. It is None under a convention that bills no attention.
    """

    flops: Fraction
    params: Fraction
    kv: Fraction
    attention: Fraction | None

    def as_json(self) -> dict[str, float | None]:
        """Signed fractions as floats."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: None if value is None else float(value) for name, value in found.items()}


def deviation(candidate: Budget, baseline: Budget) -> Deviation:
    """The four deviations of ``candidate`` from ``baseline``."""

    def relative(name: str) -> Fraction:
        ours, theirs = Fraction(getattr(candidate, name)), Fraction(getattr(baseline, name))
        return (ours - theirs) / theirs if theirs else Fraction(0)

    attention = relative("attention") if baseline.attention else None
    return Deviation(relative("flops"), relative("params"), relative("kv"), attention)


def sparsity(budget: Budget, control: Budget) -> Fraction:
    """S = 1 − (F / F0)·N0 / N, the compute-equivalent sparsity of the paper's Eq. 1 (Sec. 3.1)."""
    return 1 - (budget.flops / control.flops) * Fraction(control.params, budget.params)
