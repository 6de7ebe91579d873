"""The compute-optimal frontier, and the compute that one architecture saves over another (Eq. 3 to 5).

All functions take coefficients that are numbers or arrays (a bootstrap has one value a draw) and broadcast. Symbols: C
training FLOPs, F training FLOPs per token, S sparsity, D tokens. Source: arXiv 2609.01343v3, Sec. 4.2 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smelt_match.budget.surface import Surface

LEAST_GAIN = 1e-7  # below, rounding decides the sign
WORST_GAIN = -1e6  # what matters below is the sign
Number = Any  # a float or an array of them


@dataclass(frozen=True)
class Coefficients:
    """L(F, S, D) = E + A·(1 − S)^b / F^a + K / D^c (Eq. 2), for one fit or for many."""

    E: Number
    A: Number
    K: Number
    a: Number
    b: Number
    c: Number

    @staticmethod
    def of(surface: Surface) -> Coefficients:
        """The coefficients of a surface."""
        return Coefficients(surface.E, surface.A, surface.K, surface.a, surface.b, surface.c)

    def take(self, index: Any) -> Coefficients:
        """Those of some of the fits."""
        return Coefficients(*(value[index] for value in (self.E, self.A, self.K, self.a, self.b, self.c)))

    def capacity(self, S: Number) -> Number:
        """ln of A·(1 − S)^b."""
        return np.log(self.A) + self.b * np.log1p(-np.asarray(S))

    def loss(self, F: Number, S: Number, D: Number) -> Number:
        """Eq. 2, in nats."""
        return self.E + np.exp(self.capacity(S) - self.a * np.log(F)) + np.exp(np.log(self.K) - self.c * np.log(D))

    @property
    def gamma(self) -> Number:
        """Exponent of the frontier, a·c / (a + c) (Eq. 4)."""
        return self.a * self.c / (self.a + self.c)

    def _log_flops(self, log_C: Number, S: Number) -> Number:
        ratio = np.log(self.a / self.c) + self.capacity(S) - np.log(self.K)
        return (ratio + self.c * log_C) / (self.a + self.c)

    def optimal_flops(self, C: Number, S: Number) -> Number:
        """F*, the compute-optimal training FLOPs per token (Eq. 3)."""
        with np.errstate(over="ignore"):  # exponents near 0 send F* out of the numbers
            return np.exp(self._log_flops(np.log(C), S))

    def optimal_tokens(self, C: Number, S: Number) -> Number:
        """D* = C / F*."""
        with np.errstate(over="ignore"):
            return np.exp(np.log(C) - self._log_flops(np.log(C), S))

    def tokens_per_parameter(self, C: Number, S: Number) -> Number:
        """D* per dense-equivalent parameter, F*/6."""
        with np.errstate(over="ignore"):
            return 6 * np.exp(np.log(C) - 2 * self._log_flops(np.log(C), S))

    def prefactor(self, S: Number) -> Number:
        """ln of the frontier's prefactor: the reducible loss at C = 1 (Eq. 4)."""
        log_F = self._log_flops(0.0, S)
        return np.logaddexp(self.capacity(S) - self.a * log_F, np.log(self.K) + self.c * log_F)

    def frontier(self, C: Number, S: Number) -> Number:
        """L*, the lowest loss at a budget (Eq. 4), in nats."""
        with np.errstate(over="ignore"):
            return self.E + np.exp(self.prefactor(S) - self.gamma * np.log(C))

    def compute_for(self, loss: Number, S: Number) -> Number:
        """The budget at which the frontier reaches a loss; infinite where it never does."""
        reducible = np.asarray(loss - self.E, dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            need = (self.prefactor(S) - np.log(np.maximum(reducible, 0))) / self.gamma
            return np.where(reducible > 0, np.exp(need), np.inf)


def gain(target: Coefficients, reference: Coefficients, C: Number, S: Number) -> Number:
    """CE Gain: the share of compute that the target saves at the same loss, 1 − C / C_ref (Eq. 5).

    1 where the reference never reaches the target's loss; negative where the target needs more compute.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return 1 - C / reference.compute_for(target.frontier(C, S), S)


def crossover_tokens(target: Coefficients, reference: Coefficients) -> Number:
    """D at which the data terms K / D^c of the two are equal; NaN where the exponents are."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.exp(np.log(target.K / reference.K) / (target.c - reference.c))


@dataclass(frozen=True)
class Turns:
    """How the gain moves with the budget at one sparsity.

    Attributes:
        peak: (C, gain) of the largest gain within the range, or None where that lies at an end.
        signs: Budgets at which the gain changes sign, ascending.
        low, high: The range of budgets that was searched.
    """

    peak: tuple[float, float] | None
    signs: tuple[float, ...]
    low: float
    high: float


def turns(target: Coefficients, reference: Coefficients, S: float, low: float = 1e15, high: float = 1e35) -> Turns:
    """Where the gain peaks and where it changes sign, between two budgets."""
    from scipy.optimize import brentq, minimize_scalar

    def at(x: float) -> float:
        return max(float(gain(target, reference, np.exp(x), S)), WORST_GAIN)

    grid: NDArray[np.float64] = np.linspace(np.log(low), np.log(high), 801)
    values = np.maximum(np.asarray(gain(target, reference, np.exp(grid), S), dtype=np.float64), WORST_GAIN)
    values[np.abs(values) < LEAST_GAIN] = 0
    signs = [
        float(np.exp(brentq(at, grid[i], grid[i + 1], xtol=1e-10)))
        for i in range(len(grid) - 1)
        if values[i] * values[i + 1] < 0
    ]
    top = int(np.argmax(values))
    peak = None
    if 0 < top < len(grid) - 1 and values[top] < 1:
        best = minimize_scalar(lambda x: -at(x), bounds=(grid[top - 1], grid[top + 1]), method="bounded",
                               options={"xatol": 1e-9})  # fmt: skip
        peak = (float(np.exp(best.x)), float(-best.fun))
    return Turns(peak, tuple(signs), low, high)
