"""The cell bootstrap: resample (scale, sparsity) cells, refit, and see what moves (arXiv 2609.01343v3, Sec. 4.3).

A cell is one training run with its decay branches, so that its end points share their luck. Paired: both architectures
get the same cells in every draw, as their runs come in pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.design import Array, Mask
from smelt_match.scaling.fit import MAX_GRADIENT, Fit
from smelt_match.scaling.frontier import Coefficients
from smelt_match.scaling.solver import solve

Cells = NDArray[np.int64]
MAX_FAILED = 0.05
LEVEL = (2.5, 97.5)


@dataclass(frozen=True)
class Draws:
    """Refitted coefficients of each group, one value a draw.

    Attributes:
        coefficients: By group.
        weight: How often each of a group's points was drawn, (draws, n), by group.
        failed: Draws that did not converge and are left out.
        paired: Whether all groups got the same cells.
        cells: How many cells were resampled.
    """

    coefficients: Mapping[str, Coefficients]
    weight: Mapping[str, Array]
    failed: int
    paired: bool
    cells: Mapping[str, int]

    def __len__(self) -> int:
        return len(next(iter(self.coefficients.values())).E)


def multiplicities(cells: int, draws: int, seed: int, stream: int = 0) -> Array:
    """How often each cell is drawn, (draws, cells): resampling with replacement as many as there are."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, stream))))
    return generator.multinomial(cells, np.full(cells, 1 / cells), size=draws).astype(np.float64)


def cell_bootstrap(
    fits: Mapping[str, Fit], cells: Mapping[str, Cells], draws: int, seed: int, paired: bool = True
) -> Draws:
    """Refit every group on resampled cells, from where its own fit ended.

    Args:
        fits: The fit of each group; groups that share parameters have the same one.
        cells: The cell of each of a group's points.
        draws: How many times.
        seed: Of the resampling; the same seed gives the same bytes.
        paired: The same cells for all groups; the groups must have the same ones.
    """
    counts = {group: int(cell.max()) + 1 for group, cell in cells.items()}
    drawn = {
        group: multiplicities(counts[group], draws, seed, 0 if paired else stream)
        for stream, group in enumerate(fits)
    }  # fmt: skip
    thetas: dict[int, tuple[Array, Mask]] = {}
    for found in fits.values():
        if id(found) in thetas:
            continue
        weight = found.design.weight * np.concatenate([drawn[g][:, cells[g]] for g in found.design.groups], axis=1)
        solved = solve(found.design, np.repeat(found.theta[None], draws, axis=0), weight, found.frozen)
        thetas[id(found)] = solved.theta, solved.gradient <= MAX_GRADIENT
    sound = np.all([fine for _, fine in thetas.values()], axis=0)
    failed = int(np.sum(~sound))
    if failed > MAX_FAILED * draws:
        raise AnswerIsNo(
            f"{failed:,} of {draws:,} bootstrap draws have no optimum",
            "resampled cells do not pin the surface down: more cells, or given exponents (--fix, --shared)",
        )
    return Draws(
        {group: found.design.coefficients(thetas[id(found)][0][sound], group) for group, found in fits.items()},
        {group: drawn[group][sound][:, cells[group]] * found.parts[group].weight for group, found in fits.items()},
        failed, paired, counts,
    )  # fmt: skip


def interval(values: Array) -> tuple[float, float]:
    """The 2.5th and 97.5th percentiles, without draws that are NaN."""
    low, high = np.nanpercentile(values, LEVEL)
    return float(low), float(high)
