"""A published table of which studies match which budgets, and the same table recomputed from specs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from smelt_match.audit.pair import Audit, Quantity, audit
from smelt_match.audit.verdict import Outcome, Verdict, together
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, Convention
from smelt_match.budget.tolerance import PAPERS, Tolerance
from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.family import shipped
from smelt_match.spec.model import Head, ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate

Agreement: TypeAlias = Literal["agree", "partly", "disagree"]


class Ticks(Record):
    """What a table prints for each budget."""

    flops: Outcome
    params: Outcome
    kv: Outcome


class Span(Record):
    """The share of the physical layers that is repeated, at a number of passes where that is printed."""

    percent: Annotated[int, Field(ge=1, le=100)]
    passes: Annotated[int, Field(ge=2)] | None = None

    def covers(self, counted: Span) -> bool:
        """Whether a counted span is this one; one that is printed without passes is meant for any number of them."""
        return self.percent == counted.percent and self.passes in (None, counted.passes)

    def __str__(self) -> str:
        return f"{self.percent} %" + (f" at r = {self.passes}" if self.passes is not None else "")


class PairRule(Record):
    """Shipped specs by name or pattern, and what they are compared with: by default, what each names in ``matches``.

    Attributes:
        compared_at: The budget that the study means to hold equal in these pairs, or None where it says nothing of it.
    """

    candidate: str
    baseline: str | None = None
    compared_at: Literal["flops", "params"] | None = None


class PrintedRow(Record):
    """One study as a table prints it."""

    work: str
    architecture: str
    spans: list[Span]
    printed: Ticks
    footnote: str = ""
    pairs: list[PairRule]


class PrintedTable(Record):
    """A table of studies."""

    name: str
    source: str
    rows: Annotated[list[PrintedRow], Field(min_length=1)]


@dataclass(frozen=True)
class Study:
    """A row with its pairs audited.

    Attributes:
        audits: One for each pair whose two ends ship.
        kinds: The budget that each of them is compared at, or None.
        absent: Why a pair has no audit.
    """

    row: PrintedRow
    audits: tuple[Audit, ...]
    kinds: tuple[str | None, ...]
    absent: tuple[str, ...]

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Our verdict on each budget, over all pairs."""
        found = {}
        for name in Ticks.model_fields:
            each = {pair_name(one): one.verdicts[name] for one in self.audits}
            each |= dict.fromkeys(self.absent, Verdict("not determinable", ""))
            found[name] = together(each)
        return found

    def agrees(self, budget: str) -> bool | None:
        """Whether our verdict is the printed one; None where there is none of ours."""
        ours = self.verdicts[budget].outcome
        return None if ours == "not determinable" else ours == getattr(self.row.printed, budget)

    def against(self, budget: Quantity) -> list[Audit]:
        """The pairs that speak against the printed tick, the furthest off first where it says matched."""
        printed = getattr(self.row.printed, budget)
        known = [one for one in self.audits if one[budget].deviation is not None]
        if printed == "matched":
            known = [one for one in known if not one.verdicts[budget].is_matched]
        elif printed == "not matched":
            known = [one for one in known if one.verdicts[budget].is_matched]
        return sorted(known, key=lambda one: -abs(one[budget].deviation or Fraction(0)))

    def by_kind(self, audits: list[Audit]) -> dict[str, tuple[int, int]]:
        """How many of these pairs, out of how many, are compared at equal FLOPs and at equal parameters."""
        these = set(map(id, audits))
        chosen = [kind for one, kind in zip(self.audits, self.kinds, strict=True) if id(one) in these]
        return {kind: (chosen.count(kind), self.kinds.count(kind)) for kind in dict.fromkeys(self.kinds) if kind}

    def otherwise(self, found: Audit, budget: Quantity) -> dict[str, Fraction]:
        """The deviation of a pair by each named convention whose verdict is the printed one."""
        printed, agree = getattr(self.row.printed, budget), {}
        for rule in CONVENTIONS.values():
            other = audit(found.baseline, found.candidate, rule, found.context, found.tolerance)[budget]
            if other.verdict is not None and other.verdict.outcome == printed and other.deviation is not None:
                agree[rule.name] = other.deviation
        return agree

    @cached_property
    def spans(self) -> list[Span]:
        """The spans of the candidates, each once, by number of passes."""
        found = {
            (max(layout.counts), round(100 * len(layout.loop) / layout.num_layers))
            for one in self.audits
            if isinstance(one.candidate, ModelSpec) and (layout := one.candidate.visits).loop
        }
        return [Span(percent=percent, passes=passes) for passes, percent in sorted(found)]

    @property
    def spans_unlike(self) -> list[Span]:
        """The printed spans that no candidate has; empty where none can be counted."""
        return [span for span in self.row.spans if self.spans and not any(map(span.covers, self.spans))]

    @property
    def spans_verdict(self) -> Agreement | None:
        """Whether every printed span is that of a candidate and the other way round; None where none can be counted."""
        if not self.spans:
            return None
        printed = [any(span.covers(ours) for ours in self.spans) for span in self.row.spans]
        counted = [any(span.covers(ours) for span in self.row.spans) for ours in self.spans]
        return "agree" if all(printed + counted) else "partly" if any(counted) else "disagree"


def table(name: str) -> PrintedTable:
    """A table that ships with the package."""
    (path,) = (path for path in data_files("specs/tables") if path.stem == name)
    return validate(PrintedTable, load(read_text(path, "table"), str(path)))


def studies(
    printed: PrintedTable, convention: Convention, override: Context | None = None, tolerance: Tolerance = PAPERS
) -> list[Study]:
    """Every row of a table recomputed, each pair in the longer context of its two models unless another is given."""
    found = []
    for row in printed.rows:
        audits, kinds, absent = [], [], []
        for rule, pair in _pairs(row):
            if isinstance(pair, str):
                absent.append(pair)
            else:
                audits.append(audit(*pair, convention, override, tolerance))
                kinds.append(rule.compared_at)
        found.append(Study(row, tuple(audits), tuple(kinds), tuple(absent)))
    return found


def pair_name(found: Audit) -> str:
    """A pair by its candidate, and its baseline where that is another model than the one it names."""
    own = found.candidate.matches == found.baseline.name
    return found.candidate.name if own else f"{found.candidate.name} to {found.baseline.name}"


def _pairs(row: PrintedRow) -> Iterator[tuple[PairRule, tuple[Head, Head] | str]]:
    """The pairs of a row with the rule that names them, or what is missing for one."""
    entries = shipped()
    for rule in row.pairs:
        names = [name for name in entries if fnmatchcase(name, rule.candidate)]
        if not names:
            yield rule, f"no spec named {rule.candidate} ships"
        for name in names:
            candidate = entries[name].spec
            baseline = entries.get(rule.baseline or candidate.matches or "")
            if baseline is not None:
                yield rule, (baseline.spec, candidate)
            elif not isinstance(candidate, ModelSpec):
                yield rule, (candidate, candidate)  # it cannot be counted, whatever it is compared with
            else:
                yield rule, f"{name} names no baseline that ships"
