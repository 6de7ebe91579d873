"""How far a budget may be off and still count as matched."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from smelt_match.errors import BadInput
from smelt_match.units import parse_fraction

BUDGETS = ("flops", "params", "kv")


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed |deviation| of each budget, inclusive."""

    flops: Fraction
    params: Fraction
    kv: Fraction


PAPERS = Tolerance(Fraction(4, 100), Fraction(1, 100), Fraction(4, 100))  # arXiv 2609.01343v3, Sec. 3.2


def parse_tolerance(text: str) -> Tolerance:
    """Read one number for all budgets, or three for flops,params,kv; `BadInput` says what is wrong."""
    parts = text.split(",")
    if len(parts) not in (1, 3):
        raise BadInput(f"--tolerance {text[:60]!r}: one number, or three for flops,params,kv")
    values = [parse_fraction(part, "--tolerance") for part in parts]
    for value, part in zip(values, parts, strict=True):
        if not 0 <= value < 1:
            bare = part.strip()
            raise BadInput(
                f"--tolerance {bare!r}: at least 0 and less than 100% of the baseline",
                f"write {bare}% for per cent" if value >= 1 and not bare.endswith("%") else "",
            )
    return Tolerance(*(values * 3 if len(values) == 1 else values))
