"""Plans as tables, in words and as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smelt_match.budget.surface import Surface
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.report.laws import finite, fixed_point, scientific, share
from smelt_match.scaling.frontier import Coefficients
from smelt_match.scaling.planning import Choice

ALLOCATION = (
    Column("surface", "surface", left=True),
    Column("sparsity", "S", share()),
    Column("flops_per_token", "F*", scientific(3)),
    Column("tokens", "D*", scientific(3)),
    Column("tokens_per_parameter", "TPP", fixed_point(0)),
    Column("loss", "L* (nats)", fixed_point(4)),
    Column("outside_the_fit", "outside the fit", left=True),
)
CHOICES = (
    Column("surface", "surface", left=True),
    Column("model", "model", left=True),
    Column("layout", "layout", left=True),
    Column("sparsity", "S", share()),
    Column("flops_per_token", "F", scientific(3)),
    Column("ratio", "F / F*", fixed_point(2)),
    Column("tokens", "D", scientific(3)),
    Column("loss", "loss (nats)", fixed_point(4)),
    Column("excess", "above L*", fixed_point(4)),
    Column("outside_the_fit", "outside the fit", left=True),
)


def _csv_columns() -> list[Column]:
    both = {column.key: column for column in (*CHOICES, *ALLOCATION)}
    last = both.pop("outside_the_fit")
    own = ("row", "flops", "convention")
    seeds = ("difference_nats", "spread_nats", "seeds_per_side", "runs", "power", "level")
    return [*(Column(name, name) for name in own), *both.values(), last, *(Column(name, name) for name in seeds)]


# Of the one table that CSV holds: the split of the budget, the models, and the seeds.
CSV = tuple(_csv_columns())


@dataclass(frozen=True)
class Resolution:
    """How many runs tell a difference.

    Attributes:
        difference, spread: In nats.
        seeds: Of each side.
        power, level: Of the two-sided t test.
    """

    difference: float
    spread: float
    seeds: int
    power: float
    level: float

    @property
    def words(self) -> str:
        """As a sentence."""
        return (
            f"to tell a difference of {self.difference:g} nats at a spread of {self.spread:g} over seeds: {self.seeds} "
            f"seeds a side, {2 * self.seeds} runs (two-sided t test, level {self.level:g}, power {self.power:.1%})"
        )


@dataclass(frozen=True)
class Plan:
    """What `plan` shows.

    Attributes:
        C: Training FLOPs.
        sparsities: Where the allocation is shown.
        surfaces: The surfaces.
        choices: The nearest models by surface.
        resolution: Seeds, where asked.
    """

    C: float
    sparsities: Sequence[float]
    surfaces: Sequence[Surface]
    choices: dict[str, list[Choice]]
    resolution: Resolution | None

    def allocation_rows(self) -> list[Row]:
        """F* and D* of each surface and sparsity."""
        rows: list[Row] = []
        for surface in self.surfaces:
            k = Coefficients.of(surface)
            for S in self.sparsities:
                F, D = float(k.optimal_flops(self.C, S)), float(k.optimal_tokens(self.C, S))
                checks = (
                    ("C", surface.flops, self.C), ("S", surface.sparsity, S), ("F*", surface.flops_per_token, F),
                    ("D*", surface.tokens, D),
                )  # fmt: skip
                outside = [name for name, ends, value in checks if ends and not ends[0] <= value <= ends[1]]
                rows.append(
                    {
                        "surface": surface.name, "sparsity": S, "flops_per_token": F, "tokens": D,
                        "tokens_per_parameter": float(k.tokens_per_parameter(self.C, S)),
                        "loss": float(k.frontier(self.C, S)),
                        "outside_the_fit": ", ".join(outside),
                    }
                )  # fmt: skip
        return rows

    def choice_rows(self) -> list[Row]:
        """The nearest models."""
        return [
            {
                "surface": name, "model": one.candidate.name, "layout": one.candidate.layout,
                "sparsity": one.candidate.S, "flops_per_token": one.candidate.F,
                "ratio": one.ratio, "tokens": one.tokens, "loss": one.loss,
                "excess": one.excess, "outside_the_fit": ", ".join(one.outside),
            }
            for name, choices in self.choices.items()
            for one in choices
        ]  # fmt: skip

    def csv_rows(self) -> list[Row]:
        """Rows of three kinds: ``optimum`` (F*, D*, TPP, L*), ``model`` and ``seeds``."""
        document = self.document()
        kinds = {"optimum": self.allocation_rows(), "model": self.choice_rows(), "seeds": [document["resolution"]]}
        shared = {"flops": self.C, "convention": document["convention"]}
        return [{"row": kind, **shared, **row} for kind, rows in kinds.items() for row in rows if row is not None]

    def words(self) -> list[str]:
        """What stands under the tables."""
        lines = [
            f"C = {self.C:.3g} training FLOPs; F: training FLOPs per token by convention 'paper', D = C / F; "
            "TPP: D* / (F* / 6)".replace("e+", "e"),
            "above L*: predicted loss over the frontier's at the same sparsity",
        ]
        return lines + ([self.resolution.words] if self.resolution else [])

    def document(self) -> dict[str, Any]:
        """The document of `plan`."""
        found = self.resolution
        return {
            "schema_version": SCHEMA_VERSION, "flops": self.C, "convention": "paper",
            "allocations": [{key: finite(value) for key, value in row.items()} for row in self.allocation_rows()],
            "models": [{key: finite(value) for key, value in row.items()} for row in self.choice_rows()],
            "resolution": None if found is None else {
                "difference_nats": found.difference, "spread_nats": found.spread, "seeds_per_side": found.seeds,
                "runs": 2 * found.seeds, "power": found.power, "level": found.level,
            },
        }  # fmt: skip
