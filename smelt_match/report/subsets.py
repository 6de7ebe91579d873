"""Gains on parts of the data, as a table, in words and as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.report.laws import OUTSIDE, fixed_point, share
from smelt_match.scaling.bootstrap import Draws
from smelt_match.scaling.subsets import FLAGGED_RATIO, Difference, SubsetGain

MOST_DIFFERENCES = 66  # twelve subsets

COLUMNS = (
    Column("subset", "subset", left=True),
    Column("gain", "gain", share()),
    Column("gain_low", "2.5 %", share()),
    Column("gain_high", "97.5 %", share()),
    Column("behind", "behind the first", share()),
    Column("behind_low", "2.5 %", share()),
    Column("behind_high", "97.5 %", share()),
    Column("objective_ratio_target", "objective ratio", fixed_point(2)),
    Column("objective_ratio_reference", "of reference", fixed_point(2)),
    Column("flag", "flag", left=True),
    Column("outside_the_fit", "outside the fit", left=True),
    Column("sources", "sources", data_only=True),
    Column("flops", "C", data_only=True),
    Column("sparsity", "S", data_only=True),
)


@dataclass(frozen=True)
class Subsets:
    """Gains of one grouping at one budget and sparsity.

    Attributes:
        by: ``source``, ``category`` or ``quartile``.
        names: Target and reference.
        C, S: Budget and sparsity.
        gains: In the order of the grouping.
        members: The sources of each category.
        differences: Between every two subsets.
        draws: The bootstrap, where there was one.
    """

    by: str
    names: tuple[str, str]
    C: float
    S: float
    gains: Sequence[SubsetGain]
    members: Mapping[str, Sequence[str]]
    differences: Sequence[Difference]
    draws: Draws | None

    def columns(self) -> list[Column]:
        """The columns that have something to show."""
        hidden = set() if self.draws else {"gain_low", "gain_high", "behind_low", "behind_high"}
        if self.by == "quartile":
            hidden |= {"objective_ratio_target", "objective_ratio_reference", "flag"}
        return [column for column in COLUMNS if column.key not in hidden]

    def rows(self) -> list[Row]:
        """A row a subset: the largest gain first, quartiles in their order."""
        order = list(self.gains) if self.by == "quartile" else sorted(self.gains, key=lambda one: -one.gain)
        first = max(self.gains, key=lambda one: one.gain).name
        behind = {one.second: one for one in self.differences if one.first == first}
        return [self._row(one, behind.get(one.name)) for one in order]

    def _row(self, one: SubsetGain, behind: Difference | None) -> Row:
        low, high = one.interval or (None, None)
        ends = (behind.interval if behind else None) or (None, None)
        ratios = [None if math.isnan(ratio) else ratio for ratio in one.ratios]
        return {
            "subset": one.name, "gain": one.gain, "gain_low": low, "gain_high": high,
            "behind": behind.value if behind else None, "behind_low": ends[0], "behind_high": ends[1],
            "objective_ratio_target": ratios[0], "objective_ratio_reference": ratios[1],
            "flag": "exponents do not suit" if one.flagged else "",
            "outside_the_fit": ", ".join(one.outside), "sources": " ".join(self.members.get(one.name, ())),
        }  # fmt: skip

    def words(self) -> list[str]:
        """What stands under the table."""
        lines = [
            f"gain: share of training FLOPs that {self.names[0]} saves over {self.names[1]} at the same loss, at "
            f"C = {self.C:.3g} and S = {self.S * 100:g} %".replace("e+", "e"),
            "exponents a, b, c from the aggregate fit of each architecture; E, A, K of each "
            + ("source, then the mean over a quartile's sources and over pairs" if self.by == "quartile" else self.by),
        ]
        if self.by == "quartile":
            lines.append(f"quartiles: sources ranked within each pair by the loss of {self.names[1]}, Q1 the lowest")
        else:
            lines.append(
                f"objective ratio: with the aggregate's exponents over with its own; flagged above {FLAGGED_RATIO}"
            )
        if self.draws is not None:
            kind = "paired" if self.draws.paired else "UNPAIRED"
            lines.append(f"intervals: {kind} cell bootstrap, {len(self.draws):,} draws; exponents are redrawn too")
        if any(one.outside for one in self.gains):
            lines.append(OUTSIDE + ("; named where it holds for any source" if self.by == "quartile" else ""))
        return lines

    def document(self) -> dict[str, Any]:
        """The document of `gain --by`."""
        return {
            "schema_version": SCHEMA_VERSION, "by": self.by, "target": self.names[0], "reference": self.names[1],
            "flops": self.C, "sparsity": self.S,
            "bootstrap": None if self.draws is None else {"draws": len(self.draws), "paired": self.draws.paired},
            "subsets": [
                {key: value for key, value in row.items() if key != "sources"}
                | {"sources": list(self.members.get(row["subset"], ()))}
                for row in self.rows()
            ],
            "differences": [
                {"first": one.first, "second": one.second, "value": one.value,
                 "low": one.interval and one.interval[0], "high": one.interval and one.interval[1]}
                for one in self.differences[:MOST_DIFFERENCES]
            ],
        }  # fmt: skip
