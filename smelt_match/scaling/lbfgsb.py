"""The paper's optimiser, L-BFGS-B, on the same scaled objective and the same starts, with the analytic gradient."""

from __future__ import annotations

from collections.abc import Callable

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

    objective, free = _objective(design), ~frozen
    bounds = list(zip(design.low[free], design.high[free], strict=True))

    def of_free(values: Array, whole: Array) -> tuple[float, Array]:
        whole[free] = values
        value, gradient = objective(whole)
        return value, gradient[free]

    theta, tried = np.clip(start, design.low, design.high), np.zeros(len(start), dtype=np.int64)
    for row in range(len(theta)):
        ended = minimize(
            of_free, theta[row, free], (theta[row].copy(),), method="L-BFGS-B", jac=True, bounds=bounds, options=TIGHT
        )  # fmt: skip
        theta[row, free], tried[row] = ended.x, ended.nit
    weights = np.broadcast_to(design.weight, (len(theta), len(design.y)))
    value, scaled = Batch(design).judge(theta, weights, frozen)
    return Solved(theta, value, scaled, tried)


def _objective(design: Design) -> Callable[[Array], tuple[float, Array]]:
    """The objective over n·δ² with its gradient, for one fit: `Batch` is made for many and slower for one."""
    unit = DELTA**2 * float(np.sum(design.weight))
    members = [np.flatnonzero(np.array(design.term) == term) for term in range(max(design.term) + 1)]
    blocks = [design.X[rows] for rows in members]
    y, weight = design.y, design.weight / unit

    def objective(theta: Array) -> tuple[float, Array]:
        gradient = np.empty(len(theta))
        terms = [np.exp(theta[rows] @ block) for rows, block in zip(members[1:], blocks[1:], strict=True)]
        loss = theta[members[0]] @ blocks[0] + sum(terms)
        residual = np.log(loss) - y
        clipped = np.minimum(np.maximum(residual, -DELTA), DELTA)
        part = weight * clipped / loss
        gradient[members[0]] = blocks[0] @ part
        for rows, block, term in zip(members[1:], blocks[1:], terms, strict=True):
            gradient[rows] = block @ (part * term)
        return float((weight * clipped) @ (residual - 0.5 * clipped)), gradient

    return objective
