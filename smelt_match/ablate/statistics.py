"""Means over seeds with their intervals, paired tests, and what a number of seeds could show.

Losses of one seed are paired: at a seed, all arms start from the same seed and read the same tokens in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
POWER = 0.80


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        half: Half the width of its t-interval at 95 %; None for one seed.
        values: The values by seed.
    """

    mean: float
    half: float | None
    values: tuple[float, ...]


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values with its t-interval (n − 1 degrees of freedom)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, tuple(values))
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * _deviation(values) / math.sqrt(len(values))
    return Estimate(mean, half, tuple(values))


@dataclass(frozen=True)
class Paired:
    """Differences between two arms, a seed each.

    Attributes:
        estimate: The mean difference with its interval.
        p: Two-sided p of the paired t-test; None with one seed, or where all differences are the same.
        detectable: The smallest true difference that as many seeds would show with 80 % power at the 5 % level, given
            the spread of these differences; None with one seed.
    """

    estimate: Estimate
    p: float | None
    detectable: float | None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """``ours`` − ``theirs``, seed by seed."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    found = estimate(differences)
    if len(differences) < 2:
        return Paired(found, None, None)
    spread = _deviation(differences)
    if spread == 0:
        return Paired(found, None, 0.0)
    from scipy.stats import ttest_rel

    return Paired(found, float(ttest_rel(ours, theirs).pvalue), detectable(spread, len(differences)))


def detectable(spread: float, n: int) -> float:
    """The true mean difference that a two-sided paired t-test of ``n`` pairs finds with 80 % power at 5 %.

    ``spread`` is the standard deviation of the differences. Power is that of the noncentral t-distribution in the
    direction of the difference; what the other tail adds at such a power is less than 1e-7.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    df = n - 1
    limit = float(t.ppf((1 + LEVEL) / 2, df))

    def lacking(shift: float) -> float:
        return float(nct.sf(limit, df, shift)) - POWER

    return float(brentq(lacking, 0.0, 4 * limit + 10)) * spread / math.sqrt(n)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979), in their order."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, least = [0.0] * len(ps), 0.0
    for place, index in enumerate(order):
        least = max(least, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = least
    return adjusted


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample (n − 1)."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
