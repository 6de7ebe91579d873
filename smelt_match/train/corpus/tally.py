"""How much of an input could not be read, and when that is too much."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from smelt_match.errors import BadInput
from smelt_match.units import percent

SHOWN = 8
EARLY = 10_000  # items after which a bad input is not read to its end


@dataclass
class Tally:
    """Items of an input that were read or skipped.

    Attributes:
        name: The input.
        limit: The share of its items that may be skipped.
    """

    name: str
    limit: Fraction
    read: int = 0
    skipped: int = 0
    shown: list[str] = field(default_factory=list)

    def skip(self, place: str, why: str) -> None:
        """Leave an item out, or give up if there are too many."""
        self.skipped += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{place}: {why}")
        if self.read >= EARLY:
            self.check()

    def check(self) -> None:
        """Raise `BadInput`, naming the first items, if more were skipped than the limit allows."""
        if self.skipped <= self.limit * self.read:
            return
        more = [f"and {self.skipped - SHOWN:,} more"] if self.skipped > SHOWN else []
        raise BadInput(
            "\n".join([
                f"{self.name}: {self.skipped:,} of {self.read:,} items cannot be used; --max-bad allows "
                f"{percent(self.limit).lstrip('+')}",
                *(f"  {line}" for line in [*self.shown, *more]),
            ]),
            "mend them; or say where a record has what (--text-field, --category-field); or name the category of all "
            f"before the path: CATEGORY/SOURCE={self.name}; or raise --max-bad",
        )  # fmt: skip
