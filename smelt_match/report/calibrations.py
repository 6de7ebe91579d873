"""Calibrations of benchmark scores as tables and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.report.laws import finite, fixed_point, significant
from smelt_match.scaling.calibration import UNCERTAIN, Sigmoid
from smelt_match.scaling.design import Array

METRICS = (
    Column("metric", "metric", left=True),
    Column("a", "a", significant(4)),
    Column("b", "b", significant(4)),
    Column("alpha", "α (1/nat)", significant(4)),
    Column("tau", "τ (nats)", fixed_point(3)),
    Column("r2", "R²", fixed_point(3)),
    Column("rmse", "RMSE", significant(3)),
    Column("num_points", "points"),
    Column("unidentified", "not identified", left=True),
    Column("implausible", "not plausible", left=True),
)
EXCESS = (
    Column("metric", "metric", left=True),
    Column("arch", "architecture", left=True),
    Column("scale", "scale", left=True),
    Column("excess_mean", "mean excess", fixed_point(4)),
    Column("positive", "positive"),
    Column("num_points", "points"),
)
EQUATION = "ŷ(ℓ) = b + a / (1 + exp[−d·α·(ℓ − τ)]) (Eq. 6)"


@dataclass(frozen=True)
class Calibrations:
    """What `calibrate` shows.

    Attributes:
        reference: The architecture that the curves are fitted to.
        curves: By metric.
        excess: δ of every row of another architecture, by metric or category: (architecture, scale, δ).
        direction: −1 for scores, +1 for losses.
        categories: Whether `excess` is by category.
    """

    reference: str
    curves: Mapping[str, Sigmoid]
    excess: Mapping[str, Sequence[tuple[str, str, float]]]
    direction: int
    categories: bool

    def metric_rows(self) -> list[Row]:
        """A row a metric."""
        return [
            {
                "metric": name, "a": one.a, "b": one.b, "alpha": one.alpha, "tau": one.tau, "r2": one.r2,
                "rmse": one.rmse, "num_points": one.num_points, "unidentified": ", ".join(one.unidentified),
                "implausible": ", ".join(one.implausible),
            }
            for name, one in self.curves.items()
        ]  # fmt: skip

    def excess_rows(self) -> list[Row]:
        """The mean of δ by architecture: over all scales, then by scale."""
        rows: list[Row] = []
        for name, values in self.excess.items():
            for arch in dict.fromkeys(arch for arch, _, _ in values):
                mine = [(scale, value) for one, scale, value in values if one == arch]
                for scale in ("all", *dict.fromkeys(scale for scale, _ in mine if scale)):
                    chosen: Array = np.array([value for one, value in mine if scale in ("all", one)])
                    rows.append(
                        {
                            "metric": name, "arch": arch, "scale": scale, "excess_mean": float(chosen.mean()),
                            "positive": int(np.sum(chosen > 0)), "num_points": len(chosen),
                        }
                    )  # fmt: skip
        return rows

    def words(self, excess: bool) -> list[str]:
        """What stands under a table."""
        kind = "scores fall with the loss (d = −1)" if self.direction < 0 else "losses rise with the loss (d = +1)"
        lines = [f"{EQUATION}, fitted to {self.reference}; {kind}"]
        if excess:
            lines.append(f"excess: δ (Eq. 7), how much better than {self.reference} at the same validation loss")
            if self.categories:
                lines.append("by category: mean of its tasks' δ, each over 1 − chance where the file gives a chance")
        else:
            lines.append(
                f"not identified: a standard error above {UNCERTAIN:.0%} of a (for a and b), of α, or of 1/α (for τ); "
                "the curve holds within its points, its ends do not"
            )
            if any(one.implausible for one in self.curves.values()):
                lines.append("not plausible: beyond what a score within [0, 1] can have; do not extrapolate the curve")
        return lines

    def document(self) -> dict[str, Any]:
        """The document of `calibrate`."""
        return {
            "schema_version": SCHEMA_VERSION, "equation": EQUATION, "reference": self.reference,
            "direction": self.direction,
            "metrics": [
                {**row, "unidentified": one.unidentified, "implausible": one.implausible,
                 "standard_errors": [finite(error) for error in one.errors],
                 "relative_errors": [finite(error) for error in one.relative_errors],
                 "scaled_errors": [finite(error) for error in one.scaled_errors]}
                for row, one in zip(self.metric_rows(), self.curves.values(), strict=True)
            ],
            "excess_by": "category" if self.categories else "metric", "excess": self.excess_rows(),
        }  # fmt: skip
