"""From validation loss to a benchmark's score: a four-parameter sigmoid, and what it leaves over (Eq. 6 and 7).

    ŷ(ℓ) = b + a / (1 + exp[−d·α·(ℓ − τ)]),  a, α > 0, d = −1 for scores and +1 for losses
    δ_i = s·(y_i − ŷ(ℓ_i)), s = +1 for scores and −1 for losses

Source: arXiv 2609.01343v3, Sec. 5.1; the sigmoid after arXiv 2412.04403 (task scaling laws).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.design import Array

GRID = 24  # of steepness and of midpoint
REFINED = 4  # of the grid's points, the best go on
UNCERTAIN = 0.5  # scaled standard error above which a parameter is not identified
ROUNDING = 1e-6
MIN_POINTS = 6
PARAMETERS = ("a", "b", "alpha", "tau")


@dataclass(frozen=True)
class Sigmoid:
    """A calibration of one metric.

    Attributes:
        a, b, alpha, tau: Height, floor, steepness per nat, and midpoint in nats.
        direction: −1 where the metric falls with the loss (a score), +1 where it rises.
        r2: Share of the variance explained.
        rmse: Root mean square residual, in the metric's unit.
        errors: Standard errors of a, b, α and τ, in their units.
        num_points: End points behind it.
        shares: Whether the metric is a score that lies within [0, 1] at all of them.
    """

    a: float
    b: float
    alpha: float
    tau: float
    direction: int
    r2: float
    rmse: float
    errors: tuple[float, float, float, float]
    num_points: int
    shares: bool = False

    def at(self, loss: Any) -> Any:
        """ŷ at a loss (Eq. 6)."""
        return self.b + self.a * _logistic(self.direction * self.alpha * (np.asarray(loss) - self.tau))

    def excess(self, loss: Array, score: Array) -> Array:
        """δ: how much better than the curve, in the metric's unit (Eq. 7)."""
        return np.asarray(-self.direction * (score - self.at(loss)))

    @property
    def relative_errors(self) -> list[float]:
        """Standard errors of a, b, α and τ over their absolute values."""
        values = (self.a, self.b, self.alpha, self.tau)
        return [error / abs(value) if value else np.inf for error, value in zip(self.errors, values, strict=True)]

    @property
    def scaled_errors(self) -> list[float]:
        """Standard errors of a and b over a, of α over α and of τ over 1/α, so that no zero of a scale matters."""
        scales = (self.a, self.a, self.alpha, 1 / self.alpha)
        return [error / scale for error, scale in zip(self.errors, scales, strict=True)]

    @property
    def unidentified(self) -> list[str]:
        """Parameters that the points do not pin down: the curve holds within their range, its ends do not."""
        pairs = zip(PARAMETERS, self.scaled_errors, strict=True)
        return [name for name, error in pairs if not error <= UNCERTAIN]

    @property
    def implausible(self) -> list[str]:
        """What a score within [0, 1] cannot have: a height or a ceiling above 1, a floor below 0."""
        if not self.shares:
            return []
        checks = {"a > 1": self.a - 1, "b < 0": -self.b, "a + b > 1": self.a + self.b - 1}
        return [name for name, excess in checks.items() if excess > ROUNDING]


def _logistic(x: Any) -> Any:
    from scipy.special import expit

    return expit(x)


def calibrate(loss: Array, score: Array, direction: int, what: str) -> Sigmoid:
    """Least squares from a grid of midpoints and steepnesses; `AnswerIsNo` where no curve of that direction fits.

    Args:
        loss: Validation losses, (n,).
        score: The metric at the same end points, (n,).
        direction: −1 for a score, +1 for a loss.
        what: The metric's name, for messages.
    """
    from scipy.optimize import least_squares

    if len(loss) < MIN_POINTS:
        raise AnswerIsNo(f"{what}: {len(loss)} end points, a curve with four parameters needs {MIN_POINTS}")
    spread, height = float(np.std(loss)), float(np.ptp(score))
    if not spread > 0 or not height > 0:
        raise AnswerIsNo(f"{what}: the {'loss' if spread == 0 else 'metric'} is the same at every end point")
    centre, level = float(np.mean(loss)), float(np.mean(score))
    x, y = (loss - centre) / spread, (score - level) / height

    def residuals(p: Array) -> Array:
        log_a, b, log_alpha, tau = p
        return np.asarray(b + np.exp(log_a) * _logistic(direction * np.exp(log_alpha) * (x - tau)) - y)

    def jacobian(p: Array) -> Array:
        log_a, _, log_alpha, tau = p
        a, slope = np.exp(log_a), direction * np.exp(log_alpha)
        level = _logistic(slope * (x - tau))
        steep = a * level * (1 - level) * slope
        return np.column_stack([a * level, np.ones_like(x), steep * (x - tau), -steep])

    bounds = ([-10.0, -1e3, -5.0, -30.0], [7.0, 1e3, 5.0, 30.0])
    ends = [
        least_squares(residuals, start, jacobian, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12, max_nfev=2000)
        for start in _starts(x, y, direction)
    ]
    if not ends:
        wanted = "falls" if direction < 0 else "rises"
        raise AnswerIsNo(f"{what}: no curve that {wanted} with the loss fits",
                         "--lower-is-better is for metrics that are losses")  # fmt: skip
    best = min(ends, key=lambda end: float(end.cost))
    log_a, b, log_alpha, tau = (float(value) for value in best.x)
    left = residuals(best.x)
    a, alpha = np.exp(log_a) * height, np.exp(log_alpha) / spread
    return Sigmoid(
        float(a), b * height + level, float(alpha), tau * spread + centre, direction,
        1 - float(np.sum(left**2) / np.sum((y - y.mean()) ** 2)), float(np.sqrt(np.mean(left**2))) * height,
        _errors(best.jac, left, (float(a), height, float(alpha), spread)), len(loss),
        direction < 0 and float(score.min()) >= 0 and float(score.max()) <= 1,
    )  # fmt: skip


def _starts(x: Array, y: Array, direction: int) -> list[Array]:
    """The best points of a grid: with steepness and midpoint given, height and floor are linear."""
    log_alpha, tau = (
        axis.ravel()
        for axis in np.meshgrid(
            np.linspace(-1.5, 2.5, GRID), np.linspace(x.min() - 2, x.max() + 2, GRID), indexing="ij"
        )
    )
    basis = _logistic(direction * np.exp(log_alpha)[:, None] * (x - tau[:, None]))
    mean = basis.mean(axis=1)
    middle = basis - mean[:, None]
    norm = np.einsum("gn,gn->g", middle, middle)
    a = np.where(norm > 1e-20, np.einsum("gn,n->g", middle, y) / np.maximum(norm, 1e-20), 0.0)
    b = y.mean() - a * mean
    cost = np.sum((b[:, None] + a[:, None] * basis - y) ** 2, axis=1)
    best = [g for g in np.argsort(cost, kind="stable") if a[g] > 1e-4][:REFINED]
    return [np.array([np.clip(np.log(a[g]), -9, 6), np.clip(b[g], -900, 900), log_alpha[g], tau[g]]) for g in best]


def _errors(jacobian: Array, left: Array, units: tuple[float, ...]) -> tuple[float, float, float, float]:
    """Standard errors from the curvature at the optimum, in the units of what is reported."""
    freedom = max(1, len(left) - jacobian.shape[1])
    lengths = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
    scaled = jacobian / lengths
    gram = scaled.T @ scaled
    if np.linalg.cond(gram) > 1e14:
        return (float("inf"),) * 4
    covariance = np.linalg.inv(gram) / np.outer(lengths, lengths) * float(left @ left) / freedom
    a, b, alpha, tau = np.sqrt(np.maximum(np.diagonal(covariance), 0)) * units
    return float(a), float(b), float(alpha), float(tau)
