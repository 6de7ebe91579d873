"""The recurrence law: how many unique parameters a recurrence is worth.

    L = E + A / (N_once + r^φ·N_rec)^a + K / D^c

φ = 1: a block that runs r times is worth r blocks; φ = 0: it is worth one. With φ given this is the Chinchilla form
over effective parameters, so that φ is found where the derivative of the profiled objective vanishes. Source:
Schwethelm, Rueckert and Kaissis, arXiv 2604.21106 (which finds φ = 0.46).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.design import Array, Points
from smelt_match.scaling.fit import MAX_CONDITION, MAX_GRADIENT, Fit, certified, fit
from smelt_match.scaling.solver import DELTA, Batch

GROUP = "recurrence"
RANGE = (-0.5, 2.0)
GRID = 26


@dataclass(frozen=True)
class Recurrences:
    """End points of looped models: parameters that run once and that recur, r, tokens, loss, weight; (n,) each."""

    once: Array
    recurrent: Array
    count: Array
    tokens: Array
    loss: Array
    weight: Array

    def effective(self, phi: float) -> Array:
        """Effective parameters N_once + r^φ·N_rec."""
        return np.asarray(self.once + self.count**phi * self.recurrent)

    def points(self, phi: float) -> Points:
        """The points over effective parameters, with F = 6·N."""
        N = self.effective(phi)
        return Points(6 * N, np.zeros(len(N)), self.tokens, self.loss, self.weight)


@dataclass(frozen=True)
class RecurrenceFit:
    """The law with its exponent.

    Attributes:
        phi: The recurrence-equivalence exponent.
        fit: The Chinchilla form over the effective parameters at ``phi``.
        gradient: Scaled derivative of the objective in φ.
        condition: Condition number with φ among the parameters.
    """

    phi: float
    fit: Fit
    gradient: float
    condition: float


def _slope(data: Recurrences, found: Fit, phi: float) -> tuple[float, float, Array]:
    """Derivative of the objective in φ at the inner optimum, the most it could be, and d ln L / dφ."""
    batch = Batch(found.design)
    residuals, shares = batch.residuals(found.theta[None])
    a = float(found.coefficients(GROUP).a)
    part = data.count**phi * data.recurrent / data.effective(phi)
    derivative = -a * shares[1][0] * part * np.log(data.count)
    psi = data.weight * np.clip(residuals[0], -DELTA, DELTA)
    return float(np.sum(psi * derivative)), float(DELTA * np.sum(data.weight * np.abs(derivative))), derivative


def fit_recurrence(data: Recurrences) -> RecurrenceFit:
    """Fit φ with the five coefficients, certified; `AnswerIsNo` where the end points do not tell it."""
    from scipy.optimize import brentq

    if np.ptp(data.count) == 0:
        raise AnswerIsNo(f"φ cannot be told: r is {data.count[0]:g} in all rows", "add runs with another r")
    if not np.any(data.recurrent > 0):
        raise AnswerIsNo("φ cannot be told: no row has recurrent parameters")

    def at(phi: float) -> Fit:
        return fit({GROUP: data.points(phi)}, fixed={"b": 0.0}, every=6)

    grid = np.linspace(*RANGE, GRID)
    fits = [at(float(phi)) for phi in grid]
    best = int(np.argmin([one.certificate.objective for one in fits]))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(GRID - 1, best + 1)])
    slopes = [_slope(data, at(phi), phi)[0] for phi in (low, high)]
    if not slopes[0] < 0 < slopes[1]:
        raise AnswerIsNo(f"φ cannot be told: the objective has no minimum between {RANGE[0]:g} and {RANGE[1]:g}")
    phi = float(brentq(lambda value: _slope(data, at(value), value)[0], low, high, xtol=1e-13, rtol=1e-14))
    found = certified(fit({GROUP: data.points(phi)}, fixed={"b": 0.0}), "recurrence law")
    slope, most, derivative = _slope(data, found, phi)
    result = RecurrenceFit(phi, found, abs(slope) / most, _condition(found, derivative))
    if result.gradient > MAX_GRADIENT or result.condition > MAX_CONDITION:
        raise AnswerIsNo(
            f"recurrence law: scaled gradient {result.gradient:.1e} in φ, condition number {result.condition:.1e}: "
            "not an optimum that the end points pin down",
            "more sizes at each r tell φ from the exponent of N",
        )
    return result


def _condition(found: Fit, derivative: Array) -> float:
    weight = np.sqrt(found.design.weight)
    columns = np.column_stack([Batch(found.design).jacobian(found.theta)[:, ~found.frozen], derivative])
    columns = columns * weight[:, None]
    gram = np.einsum("np,nq->pq", columns, columns)
    lengths = np.sqrt(np.diagonal(gram))
    if not np.all(lengths > 0):
        return float("inf")
    least, *_, greatest = np.linalg.eigvalsh(gram / np.outer(lengths, lengths))
    return float(np.sqrt(greatest / least)) if least > 1e-14 else float("inf")
