"""A baseline and a candidate, budget by budget, under one convention and one context for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from smelt_match.audit.verdict import Verdict, judge, together
from smelt_match.budget.context import DEFAULT_TOKENS, Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.count import context_of, control_of
from smelt_match.budget.ledger import Budget, Ledger, Row, ledger
from smelt_match.budget.tolerance import BUDGETS, PAPERS, Tolerance
from smelt_match.spec.model import Head, ModelSpec

Quantity: TypeAlias = Literal["flops", "params", "kv", "attention", "step_time"]
_COLUMNS: dict[Quantity, Callable[[Ledger, Row], Fraction]] = {
    "flops": lambda book, row: book.flops(row),
    "params": lambda _, row: Fraction(int(row.stored)),
    "kv": lambda _, row: Fraction(int(row.kv)),
    "attention": lambda book, row: book.flops(row) if row.scores else Fraction(0),
}


@dataclass(frozen=True)
class Line:
    """A component of both ledgers: where it stands in each, and what it comes to in all."""

    component: str
    places: tuple[str, str]
    values: tuple[Fraction, Fraction]

    @property
    def difference(self) -> Fraction:
        """Candidate less baseline."""
        return self.values[1] - self.values[0]


@dataclass(frozen=True)
class Compared:
    """One quantity of both models.

    Attributes:
        baseline: Its value, exactly, or None where the baseline cannot be counted.
        candidate: The candidate's.
        tolerance: The largest |deviation| that counts as matched, or None for a quantity that no budget binds.
        missing: What keeps it from being counted, in words; empty where both values are known.
        line: The component whose values differ most; None where none does.
    """

    quantity: Quantity
    baseline: Fraction | None = None
    candidate: Fraction | None = None
    tolerance: Fraction | None = None
    missing: str = ""
    line: Line | None = None

    @property
    def ratio(self) -> Fraction | None:
        """Candidate over baseline, exactly."""
        if self.baseline is None or self.candidate is None:
            return None
        return self.candidate / self.baseline

    @property
    def deviation(self) -> Fraction | None:
        """The ratio less one."""
        return None if self.ratio is None else self.ratio - 1

    @property
    def verdict(self) -> Verdict | None:
        """What can be said of it; None where there is no tolerance to say it by."""
        if self.missing:
            return Verdict("not determinable", self.missing)
        if self.tolerance is None or self.deviation is None:
            return None
        return judge(self.deviation, self.tolerance)


@dataclass(frozen=True)
class Audit:
    """Two models compared."""

    baseline: Head
    candidate: Head
    convention: Convention
    context: Context
    compared: tuple[Compared, ...]

    def __getitem__(self, quantity: Quantity) -> Compared:
        return next(row for row in self.compared if row.quantity == quantity)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each of the three budgets."""
        return {row.quantity: row.verdict for row in self.compared if row.quantity in BUDGETS and row.verdict}

    @property
    def verdict(self) -> Verdict:
        """One verdict over the three budgets."""
        return together(self.verdicts)

    def unmatched(self, required: tuple[str, ...]) -> dict[str, Verdict]:
        """The required budgets that are anything but matched."""
        return {name: self.verdicts[name] for name in required if not self.verdicts[name].is_matched}


def audit(
    baseline: Head,
    candidate: Head,
    convention: Convention,
    override: Context | None = None,
    tolerance: Tolerance = PAPERS,
    step_times: tuple[Fraction, Fraction] | None = None,
) -> Audit:
    """Compare two models.

    Args:
        override: The context of both; default: the one that the baseline states or is counted at.
        tolerance: What counts as matched; a step time is held to the tolerance of FLOPs.
        step_times: Measured seconds of a training step of either, where somebody measured them.
    """
    context = common_context(baseline, candidate, override)
    rows = [row for name in _COLUMNS if (row := _compared(name, (baseline, candidate), convention, context, tolerance))]
    if step_times is not None:
        rows.append(Compared("step_time", *step_times, tolerance.flops))
    return Audit(baseline, candidate, convention, context, tuple(rows))


def _compared(
    quantity: Quantity, ends: tuple[Head, Head], convention: Convention, context: Context, tolerance: Tolerance
) -> Compared | None:
    """One quantity; None where it is no budget and there is nothing to compare."""
    limit: Fraction | None = getattr(tolerance, quantity, None)
    missing = "; ".join(dict.fromkeys(text for end in ends if (text := unstated(end))))
    if not missing and convention.head and quantity in ("flops", "params"):
        missing = _one_vocabulary(ends)
    if missing:
        return None if limit is None else Compared(quantity, tolerance=limit, missing=missing)
    first, second = (ledger(end, convention, context) for end in ends if isinstance(end, ModelSpec))
    values = [Fraction(getattr(book.budget, quantity)) for book in (first, second)]
    if not values[0]:
        return None
    return Compared(quantity, values[0], values[1], limit, line=_most_different(quantity, (first, second)))


def common_context(baseline: Head, candidate: Head, override: Context | None = None) -> Context:
    """The one context that both models are counted at: the caller's, or the baseline's."""
    if override is not None:
        return override
    stated = next((end for end in (baseline, candidate) if isinstance(end, ModelSpec)), None)
    return Context.causal(DEFAULT_TOKENS) if stated is None else context_of(stated)


def unstated(end: Head) -> str:
    """What keeps a model from being counted, by the names of a spec's fields; empty for one that can be."""
    if isinstance(end, ModelSpec):
        return ""
    fields = [
        name
        for name, field in ModelSpec.model_fields.items()
        if field.is_required() and getattr(end, name, None) is None
    ]
    return f"{end.name} does not state {', '.join(fields)}"


def _one_vocabulary(ends: tuple[Head, Head]) -> str:
    """Says so where one end alone states a vocabulary: a head counted in one model only would compare nothing."""
    without = [end.name for end in ends if getattr(end, "vocab_size", None) is None]
    return f"{without[0]} does not state vocab_size" if len(without) == 1 else ""


def budgets(found: Audit, convention: Convention) -> tuple[Budget, Budget, Budget] | None:
    """Baseline, candidate and the baseline's control of Eq. 1, under another convention in the same context."""
    if not (isinstance(found.baseline, ModelSpec) and isinstance(found.candidate, ModelSpec)):
        return None
    models = found.baseline, found.candidate, control_of(found.baseline)
    first, second, third = (ledger(model, convention, found.context).budget for model in models)
    return first, second, third


def _most_different(quantity: Quantity, books: tuple[Ledger, Ledger]) -> Line | None:
    """The component whose two values are furthest apart; the first in the ledger where several are."""
    column = _COLUMNS[quantity]
    rows: dict[str, tuple[list[Row], list[Row]]] = {}
    for side, book in enumerate(books):
        for row in book.rows:
            if column(book, row):
                rows.setdefault(row.component, ([], []))[side].append(row)
    lines = [
        Line(
            component, (_places(ours), _places(theirs)), (_sum(column, books[0], ours), _sum(column, books[1], theirs))
        )
        for component, (ours, theirs) in rows.items()
    ]
    most = max(lines, key=lambda line: abs(line.difference))
    return most if most.difference else None


def _sum(column: Callable[[Ledger, Row], Fraction], book: Ledger, rows: list[Row]) -> Fraction:
    return sum((column(book, row) for row in rows), Fraction(0))


def _places(rows: list[Row]) -> str:
    """Where rows stand: ``layers 1-3,10-12 and layers 4-9 x2``."""
    return " and ".join(row.where + (f" x{row.visits}" if row.visits > 1 else "") for row in rows)
