"""What one architecture saves over another, as a table, in words and as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt_match.budget.surface import Surface
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.report.laws import GIVEN, OUTSIDE, coefficients_json, finite, fixed_point, share
from smelt_match.scaling.bootstrap import Draws
from smelt_match.scaling.compare import Saving
from smelt_match.scaling.fit import Fit
from smelt_match.scaling.frontier import Coefficients, Turns, crossover_tokens


def _budget(value: float) -> str:
    return f"{value:.3g}".replace("e+", "e") if math.isfinite(value) else "never"


COLUMNS = (
    Column("flops", "C", _budget),
    Column("sparsity", "S", share()),
    Column("gain", "gain", share()),
    Column("gain_low", "2.5 %", share()),
    Column("gain_high", "97.5 %", share()),
    Column("gain_shared_floor", "gain, one E", share()),
    Column("flops_reference", "C of reference", _budget),
    Column("tokens_per_parameter_target", "TPP", fixed_point(0)),
    Column("tokens_per_parameter_target_low", "2.5 %", fixed_point(0)),
    Column("tokens_per_parameter_target_high", "97.5 %", fixed_point(0)),
    Column("tokens_per_parameter_reference", "TPP of reference", fixed_point(0)),
    Column("tokens_per_parameter_reference_low", "2.5 %", fixed_point(0)),
    Column("tokens_per_parameter_reference_high", "97.5 %", fixed_point(0)),
    Column("outside_the_fit", "outside the fit", left=True),
    Column("flops_per_token_target", "F*", data_only=True),
    Column("flops_per_token_reference", "F* of reference", data_only=True),
    Column("tokens_target", "D*", data_only=True),
    Column("tokens_reference", "D* of reference", data_only=True),
    Column("loss", "L*", data_only=True),
)
# What a note says under other formats' tables: who was compared, how it was counted and fitted, and the bootstrap.
COMPARED = (
    Column("target", "target", data_only=True),
    Column("reference", "reference", data_only=True),
    *GIVEN,
    Column("draws", "draws", data_only=True),
    Column("paired", "paired", data_only=True),
    Column("seed", "seed", data_only=True),
)
INTERVALS = tuple(column.key for column in COLUMNS if column.key.endswith(("_low", "_high")))


@dataclass(frozen=True)
class Comparison:
    """Everything that `gain` shows.

    Attributes:
        target, reference: The two surfaces.
        savings: One for each budget and sparsity.
        turns: Where the gain peaks and changes sign, by sparsity.
        fits: The fits behind the surfaces, where they were fitted here.
        draws: The bootstrap, where there was one.
        floor: The E that both have in the sensitivity, where it was fitted.
        floor_reason: Why it was not.
    """

    target: Surface
    reference: Surface
    savings: Sequence[Saving]
    turns: Mapping[float, Turns]
    fits: Mapping[str, Fit]
    draws: Draws | None
    floor: float | None
    floor_reason: str = ""

    @property
    def crossover(self) -> float:
        """D at which the data terms are equal."""
        return float(crossover_tokens(Coefficients.of(self.target), Coefficients.of(self.reference)))

    def columns(self) -> list[Column]:
        """The columns that have something to show."""
        empty = set() if self.draws else set(INTERVALS)
        if self.floor is None:
            empty.add("gain_shared_floor")
        return [column for column in COLUMNS if column.key not in empty]

    def rows(self) -> list[Row]:
        """A row for each budget and sparsity."""
        return [_row(saving) for saving in self.savings]

    def words(self) -> list[str]:
        """What stands under the table."""
        target, reference = self.target, self.reference
        gammas = (Coefficients.of(target).gamma, Coefficients.of(reference).gamma)
        lines = [
            f"gain: share of training FLOPs that {target.name} saves over {reference.name} at the same loss, both on "
            "their compute-optimal frontier (Eq. 5)",
            f"C: training FLOPs of {target.name}; F as the end points count it; TPP: D* / (F* / 6) at C",
            f"γ: {gammas[0]:.3f} ({target.name}), {gammas[1]:.3f} ({reference.name}); data terms equal at "
            f"D = {_budget(self.crossover)} tokens",
        ]
        for S, turn in self.turns.items():
            lines.append(f"over C at S = {S * 100:g} %: {turn_words(turn)}")
        if self.floor is not None:
            lines.append(f"one E: both fitted with a common floor, E = {self.floor:.4f}")
        elif self.floor_reason:
            lines.append(f"one E: {self.floor_reason}")
        lines.append(self._draw_words())
        if any(saving.outside for saving in self.savings):
            lines.append(OUTSIDE)
        return lines

    def _draw_words(self) -> str:
        if self.draws is None:
            return "no intervals: a bootstrap needs end points" if not self.fits else "no intervals: --draws 0"
        cells = sorted(set(self.draws.cells.values()))
        kind = "paired" if self.draws.paired else "UNPAIRED"
        failed = f", {self.draws.failed} more did not converge" if self.draws.failed else ""
        return (
            f"intervals: {kind} bootstrap of {' and '.join(map(str, cells))} cells, {len(self.draws):,} draws{failed}; "
            "percentiles 2.5 and 97.5"
        )

    def document(self) -> dict[str, Any]:
        """The document of `gain`."""
        pair = {"target": self.target, "reference": self.reference}
        return {
            "schema_version": SCHEMA_VERSION,
            **{
                role: {
                    "name": surface.name, "source": surface.source,
                    "coefficients": coefficients_json(Coefficients.of(surface)), "rmse_nats": surface.rmse,
                    "certificate": self.fits[surface.name].certificate.as_json() if self.fits else None,
                }
                for role, surface in pair.items()
            },
            "crossover_tokens": finite(self.crossover),
            "bootstrap": None if self.draws is None else {
                "draws": len(self.draws), "failed": self.draws.failed, "paired": self.draws.paired,
                "cells": dict(self.draws.cells), "percentiles": [2.5, 97.5],
            },
            "shared_floor_E": self.floor,
            "gains": [{key: finite(value) for key, value in row.items()} for row in self.rows()],
            "over_compute": [
                {
                    "sparsity": S, "searched_flops": [turn.low, turn.high],
                    "peak_flops": turn.peak and turn.peak[0], "peak_gain": turn.peak and turn.peak[1],
                    "sign_changes_flops": list(turn.signs),
                }
                for S, turn in self.turns.items()
            ],
        }  # fmt: skip


def turn_words(turn: Turns) -> str:
    """Peak and sign changes as a sentence."""
    peak = "no peak" if turn.peak is None else f"peak {share()(turn.peak[1])} at {_power(turn.peak[0])}"
    signs = ", ".join(map(_power, turn.signs)) or "nowhere"
    return f"{peak}; the sign changes at {signs}"


def _power(C: float) -> str:
    return f"10^{math.log10(C):.1f}"


def _row(saving: Saving) -> Row:
    row: Row = {
        "flops": saving.C, "sparsity": saving.S, "gain": saving.gain, "gain_low": None, "gain_high": None,
        "gain_shared_floor": saving.gain_shared_floor, "flops_reference": saving.compute_reference,
    }  # fmt: skip
    if saving.gain_interval:
        row["gain_low"], row["gain_high"] = saving.gain_interval
    for index, role in enumerate(("target", "reference")):
        row[f"tokens_per_parameter_{role}"] = saving.tokens_per_parameter[index]
        ends = saving.tokens_per_parameter_interval
        for position, end in enumerate(("low", "high")):
            row[f"tokens_per_parameter_{role}_{end}"] = ends and ends[index][position]
        row[f"flops_per_token_{role}"] = saving.flops_per_token[index]
        row[f"tokens_{role}"] = saving.tokens[index]
    return row | {"loss": saving.loss, "outside_the_fit": ", ".join(saving.outside)}
