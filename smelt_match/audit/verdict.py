"""What can be said of a budget of two models, and of several such answers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from smelt_match.units import percent

Outcome = Literal["matched", "partly", "not matched", "not determinable"]


@dataclass(frozen=True)
class Verdict:
    """An answer, with its reason where it does not speak for itself."""

    outcome: Outcome
    reason: str = ""

    @property
    def is_matched(self) -> bool:
        """Whether everything asked about is matched."""
        return self.outcome == "matched"

    def __str__(self) -> str:
        return f"{self.outcome} ({self.reason})" if self.reason else self.outcome


def judge(deviation: Fraction, tolerance: Fraction) -> Verdict:
    """Whether a signed relative deviation lies within a tolerance, inclusive."""
    if abs(deviation) <= tolerance:
        return Verdict("matched")
    return Verdict("not matched", f"{percent(deviation)}, outside {percent(tolerance).lstrip('+')}")


def together(verdicts: Mapping[str, Verdict]) -> Verdict:
    """One verdict over several named ones.

    All matched is matched; some matched and some not is partly; where none is matched, one "not matched" decides; an
    undeterminable one leaves the whole undeterminable as long as no other speaks against a match.
    """
    by: dict[Outcome, list[str]] = {}
    for name, verdict in verdicts.items():
        by.setdefault(verdict.outcome, []).append(name)
    if set(by) == {"matched"}:
        return Verdict("matched")
    words = "; ".join(f"{', '.join(names)}: {outcome}" for outcome, names in by.items())
    against, yes = "not matched" in by, "matched" in by or "partly" in by
    if against or "partly" in by:
        return Verdict("partly" if yes else "not matched", words if len(by) > 1 else "")
    return Verdict("not determinable", words if len(by) > 1 else _shared_reason(verdicts))


def _shared_reason(verdicts: Mapping[str, Verdict]) -> str:
    """The reasons, each once."""
    return "; ".join(dict.fromkeys(verdict.reason for verdict in verdicts.values() if verdict.reason))
