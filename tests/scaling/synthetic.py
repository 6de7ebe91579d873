"""End points that the paper's two surfaces predict on its grid, with noise where asked.

Twelve sparse cells an architecture (four scales, three sparsity levels; F and S counted from the shipped specs), each
with six decay branches: 10B tokens after 10,000 to 196,075 steps of 1,048,576 tokens (Sec. 3.1).
"""

from __future__ import annotations

import csv
import math
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


def with_sources(table: list[dict[str, Any]], count: int = 8, seed: int = 1) -> list[dict[str, Any]]:
    """The rows with losses of several sources: other floors and scales, the exponents of the whole.

    The target gains more on early sources, whose losses are also lower.
    """
    generator = np.random.default_rng(seed)
    for row in table:
        surface = shipped_surfaces()[row["arch"]]
        for source in range(count):
            floor = 0.6 + 0.8 * source / count
            helped = 1 - 0.01 * (count - source) / count * 8 if row["arch"] == "smelt" else 1.0
            capacity = math.exp(surface.log_capacity(row["flops_per_token"], 1 - row["sparsity"]))
            capacity *= (1.3 - 0.4 * source / count) * helped
            data = (0.8 + 0.4 * source / count) * surface.K / row["tokens"] ** surface.c
            row[f"loss_{source}"] = surface.E * floor + capacity + data + generator.normal(0, 0.004)
    return table


def with_scores(table: list[dict[str, Any]], seed: int = 1) -> list[dict[str, Any]]:
    """The rows with three benchmark scores that fall with the loss, of which the target has a point more."""
    generator = np.random.default_rng(seed)
    for row in table:
        for task in range(3):
            curve = 0.25 * (task > 0) + 0.5 / (1 + np.exp(6 * (row["loss"] - 1.9 + 0.05 * task)))
            row[f"score_{task}"] = curve + 0.01 * (row["arch"] == "smelt") + generator.normal(0, 0.004)
    return table


def lengths() -> list[dict[str, Any]]:
    """Losses by length bucket of a full grid: the target gains on long samples, experts and parameters on all alike."""
    found = []
    for arch in ARCHITECTURES:
        for size, scale in enumerate(SCALES):
            for level, S in enumerate((0.0, 0.85, 0.95, 0.97)):
                for bucket in range(8):
                    loss = 3 - 0.1 * size - 0.05 * level - 0.1 * bucket - 0.02 * (arch == "smelt") * (1 + 0.1 * bucket)
                    found.append(
                        {"arch": arch, "scale": scale, "sparsity": S, "flops_per_token": 6e8 * 2**size,
                         "length": 32 * 2**bucket, "loss": loss}
                    )  # fmt: skip
    return found


def shots() -> list[dict[str, Any]]:
    """Scores of five tasks at k = 0 to 8, of two at 16 and 32 too; the gap is 0.9 points at k = 0, else 1.9."""
    found = []
    for arch in ARCHITECTURES:
        for task in range(5):
            for k in (0, 1, 2, 4, 8) + ((16, 32) if task < 2 else ()):
                score = 0.2 + 0.05 * task + 0.02 * float(np.log1p(k)) + (arch == "smelt") * (0.009 + 0.01 * (k > 0))
                found.append({"arch": arch, "task": f"task-{task}", "shots": k, "score": score})
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


def write_all(folder: Path) -> None:
    """The files that the examples read: end points with sources and scores, lengths, shots."""
    write(folder / "endpoints.csv", with_scores(with_sources(rows(seed=0))))
    write(folder / "lengths.csv", lengths())
    write(folder / "shots.csv", shots())
