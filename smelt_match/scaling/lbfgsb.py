"""The paper's optimiser, L-BFGS-B, on the same scaled objective and the same starts, with the analytic gradient."""

from __future__ import annotations

import numpy as np

from smelt_match.scaling.design import Array, Design, Mask
from smelt_match.scaling.solver import DELTA, Batch, Solved

TIGHT = {"ftol": 2.3e-16, "gtol": 1e-10, "maxiter": 20_000, "maxfun": 100_000, "maxls": 50}


def solve_lbfgsb(design: Design, start: Array, frozen: Mask) -> Solved:
    """Minimise from every start, one after the other, with tolerances at rounding.

    The objective is divided by n·δ², so that it and its gradient are of order one: SciPy's defaults (ftol 2.2e-9,
    gtol 1e-5) end at once on an objective of order 1e-4.
    """
    from scipy.optimize import minimize

    batch, weight = Batch(design), design.weight[None]
    unit = DELTA**2 * float(np.sum(design.weight))
    free = ~frozen
    bounds = list(zip(design.low[free], design.high[free], strict=True))

    def objective(values: Array, rest: Array) -> tuple[float, Array]:
        theta = rest.copy()
        theta[free] = values
        residuals, shares = batch.residuals(theta[None])
        gradient, _ = batch.gradient(residuals, shares, weight)
        return float(batch.objective(residuals, weight)[0]) / unit, gradient[0, free] / unit

    theta, tried = np.clip(start, design.low, design.high), np.zeros(len(start), dtype=np.int64)
    for row in range(len(theta)):
        ended = minimize(
            objective, theta[row, free], (theta[row].copy(),), method="L-BFGS-B", jac=True, bounds=bounds,
            options=TIGHT,
        )  # fmt: skip
        theta[row, free], tried[row] = ended.x, ended.nit
    weights = np.broadcast_to(design.weight, (len(theta), len(design.y)))
    value, scaled = batch.judge(theta, weights, frozen)
    return Solved(theta, value, scaled, tried)
