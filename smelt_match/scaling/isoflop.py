"""Compute-optimal sizes read off IsoFLOP curves, without a surface: a check on one.

At each budget, ln L over ln N is interpolated (Akima) and its minimum is N*; a power law through the minima gives the
exponent of N* in C. Budgets whose curve has its minimum at the smallest or the largest size are left out. Sources:
arXiv 2203.15556, Approach 2; arXiv 2406.19146 (the interpolation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.design import Array

SAME_BUDGET = 0.05  # budgets this close, relatively, are one curve
LEAST_POINTS = 4
LEAST_BUDGETS = 3
STEPS = 20_001


@dataclass(frozen=True)
class Optimum:
    """The minimum of one IsoFLOP curve: budget, N*, loss there, and points behind it."""

    C: float
    N: float
    loss: float
    num_points: int


@dataclass(frozen=True)
class IsoFlop:
    """Optimal sizes and their power law N* = G·C^exponent.

    Attributes:
        optima: By budget.
        exponent: Of N*.
        coefficient: G.
        left_out: Budgets with too few points, or with the minimum of their curve at an end.
    """

    optima: tuple[Optimum, ...]
    exponent: float
    coefficient: float
    left_out: tuple[float, ...]


def isoflop(N: Array, D: Array, loss: Array) -> IsoFlop:
    """The optima of a table of (N, D, loss) on IsoFLOP lines, C = 6·N·D; `AnswerIsNo` with fewer than three."""
    C = 6 * N * D
    order = np.argsort(C, kind="stable")
    cuts = np.flatnonzero(np.diff(np.log(C[order])) > np.log1p(SAME_BUDGET)) + 1
    optima, left_out = [], []
    for rows in np.split(order, cuts):
        budget = float(np.exp(np.mean(np.log(C[rows]))))
        found = _minimum(N[rows], loss[rows], budget)
        if found is None:
            left_out.append(budget)
        else:
            optima.append(found)
    if len(optima) < LEAST_BUDGETS:
        raise AnswerIsNo(
            f"{len(optima)} budgets have a minimum within their curve, an exponent needs {LEAST_BUDGETS}",
            f"each budget needs {LEAST_POINTS} sizes on both sides of its optimum",
        )
    x, y = (np.log([getattr(one, name) for one in optima]) for name in ("C", "N"))
    exponent = float(np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2))
    return IsoFlop(tuple(optima), exponent, float(np.exp(y.mean() - exponent * x.mean())), tuple(left_out))


def _minimum(N: Array, loss: Array, budget: float) -> Optimum | None:
    from scipy.interpolate import Akima1DInterpolator

    sizes = np.unique(N)
    least = np.array([loss[size == N].min() for size in sizes])  # of replicates the best
    if len(sizes) < LEAST_POINTS:
        return None
    grid = np.linspace(np.log(sizes[0]), np.log(sizes[-1]), STEPS)
    curve = Akima1DInterpolator(np.log(sizes), np.log(least))(grid)
    best = int(np.argmin(curve))
    if best in (0, STEPS - 1):  # still falling where the sizes end
        return None
    return Optimum(budget, float(np.exp(grid[best])), float(np.exp(curve[best])), len(sizes))
