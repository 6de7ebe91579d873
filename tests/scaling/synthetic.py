"""End points that the paper's two surfaces predict on its grid, with noise where asked.

Twelve sparse cells an architecture (four scales, three sparsity levels; F and S counted from the shipped specs), each
with six decay branches: 10B tokens after 10,000 to 196,075 steps of 1,048,576 tokens (Sec. 3.1).
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import count
from smelt_match.budget.surface import shipped_surfaces
from smelt_match.scaling.design import Points
from smelt_match.spec.family import countable, shipped

ARCHITECTURES = ("baseline", "smelt")
SCALES = ("100m", "200m", "600m", "1.6b")
LEVELS = ("s85", "s95", "s97")
BRANCH_STEPS = (10_000, 20_000, 50_000, 100_000, 150_000, 196_075)
TOKENS = [steps * 1_048_576 + 10 * 10**9 for steps in BRANCH_STEPS]
RMSE = {"baseline": 0.00554, "smelt": 0.00952}
HEADER = ("run", "arch", "scale", "sparsity", "flops_per_token", "tokens", "loss")


@cache
def costs(arch: str, scale: str, level: str) -> tuple[float, float]:
    """F and S of a cell."""
    name = f"{scale}_{level}" + ("_smelt" if arch == "smelt" else "")
    counted = count(countable(shipped()[name]), convention("paper"))
    return float(counted.ledger.budget.flops), float(counted.sparsity)


def rows(seed: int | None = None) -> list[dict[str, Any]]:
    """144 rows; with a seed, the paper's RMSE as noise on the loss."""
    generator = np.random.default_rng(seed)
    found = []
    for arch in ARCHITECTURES:
        surface = shipped_surfaces()[arch]
        for scale in SCALES:
            for level in LEVELS:
                F, S = costs(arch, scale, level)
                for tokens in TOKENS:
                    noise = 0.0 if seed is None else generator.normal(0, RMSE[arch])
                    row = (f"{scale}-{level}", arch, scale, S, F, tokens, surface.loss(F, S, tokens) + noise)
                    found.append(dict(zip(HEADER, row, strict=True)))
    return found


def write(path: Path, table: list[dict[str, Any]]) -> Path:
    """The rows as CSV."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return path


def points(arch: str, seed: int | None = None) -> Points:
    """An architecture's points."""
    mine = [row for row in rows(seed) if row["arch"] == arch]
    names = ("flops_per_token", "sparsity", "tokens", "loss")
    columns = (np.array([float(row[name]) for row in mine]) for name in names)
    return Points(*columns, np.ones(len(mine)))
