"""A baseline and a candidate, budget by budget, under one convention and one context for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from smelt_match.audit.verdict import Verdict, judge, together
from smelt_match.budget.components import family
from smelt_match.budget.context import DEFAULT_TOKENS, Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.count import context_of, control_of
from smelt_match.budget.ledger import Budget, Ledger, Row, ledger
from smelt_match.budget.passes import drawn
from smelt_match.budget.tolerance import BUDGETS, PAPERS, Tolerance
from smelt_match.spec.model import Head, IncompleteSystem, ModelSpec

Quantity: TypeAlias = Literal["flops", "params", "kv", "attention", "step_time"]
_COLUMNS: dict[Quantity, Callable[[Ledger, Row], Fraction]] = {
    "flops": lambda book, row: book.flops(row),
    "params": lambda _, row: Fraction(int(row.stored)),
    "kv": lambda _, row: Fraction(int(row.kv)),
    "attention": lambda book, row: book.flops(row) if row.scores else Fraction(0),
}


@dataclass(frozen=True)
class Line:
    """A component of both ledgers, or a family of them: where it stands in each, and what it comes to in all."""

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
        baseline: Its value, exactly, or None where the baseline cannot be counted; it is shown beside one that cannot.
        candidate: The candidate's.
        tolerance: The largest |deviation| that counts as matched, or None for a quantity that no budget binds.
        missing: What keeps the two from being compared, in words; empty where both values are known.
        line: The component whose values differ most; None where the totals are the same.
        worst: Both values at the greatest number of passes, where a number of passes is drawn and bounded.
    """

    quantity: Quantity
    baseline: Fraction | None = None
    candidate: Fraction | None = None
    tolerance: Fraction | None = None
    missing: str = ""
    line: Line | None = None
    worst: tuple[Fraction, Fraction] | None = None

    @property
    def ratio(self) -> Fraction | None:
        """Candidate over baseline, exactly."""
        if self.missing or self.baseline is None or self.candidate is None:
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
        expected = judge(self.deviation, self.tolerance)
        if self.worst is None:
            return expected
        at_most = judge(self.worst[1] / self.worst[0] - 1, self.tolerance)
        return (
            expected
            if expected.outcome == at_most.outcome
            else together({"at the mean": expected, "at the most": at_most})
        )


@dataclass(frozen=True)
class Audit:
    """Two models compared."""

    baseline: Head
    candidate: Head
    convention: Convention
    context: Context
    tolerance: Tolerance
    compared: tuple[Compared, ...]

    @property
    def drawn(self) -> dict[str, str]:
        """The models whose number of passes is drawn in training, with what it is drawn from."""
        loops = {end.name: end.loop for end in (self.baseline, self.candidate) if isinstance(end, ModelSpec)}
        return {name: loop.sampled.distribution for name, loop in loops.items() if loop and loop.sampled}

    def __getitem__(self, quantity: Quantity) -> Compared:
        return next(row for row in self.compared if row.quantity == quantity)

    @property
    def flops_without_attention(self) -> Fraction | None:
        """The FLOPs deviation with the scores of attention left out: that of the matrices."""
        pairs = [(row.baseline, row.candidate) for row in self.compared if row.quantity in ("flops", "attention")]
        if len(pairs) < 2 or any(value is None for pair in pairs for value in pair):
            return None
        first, second = ((whole or 0) - (scores or 0) for whole, scores in zip(*pairs, strict=True))
        return Fraction(second, 1) / first - 1

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
        override: The context of both; default: the longer of the two that they state or are counted at.
        tolerance: What counts as matched; a step time is held to the tolerance of FLOPs.
        step_times: Measured seconds of a training step of either, where somebody measured them.
    """
    context = common_context(baseline, candidate, override)
    rows = [row for name in _COLUMNS if (row := _compared(name, (baseline, candidate), convention, context, tolerance))]
    if step_times is not None:
        rows.append(Compared("step_time", *step_times, tolerance.flops))
    return Audit(baseline, candidate, convention, context, tolerance, tuple(rows))


def _compared(
    quantity: Quantity, ends: tuple[Head, Head], convention: Convention, context: Context, tolerance: Tolerance
) -> Compared | None:
    """One quantity; None where it is no budget and there is nothing to compare."""
    limit: Fraction | None = getattr(tolerance, quantity, None)
    gaps = [unstated(end) for end in ends]
    if not any(gaps) and convention.head and quantity in ("flops", "params"):
        gaps = _one_vocabulary(ends)
    books = [ledger(end, convention, context) if isinstance(end, ModelSpec) else None for end in ends]
    baseline, candidate = (
        None if book is None or gap else Fraction(getattr(book.budget, quantity))
        for book, gap in zip(books, gaps, strict=True)
    )
    if any(gaps):
        missing = "; ".join(filter(None, dict.fromkeys(gaps)))
        return None if limit is None else Compared(quantity, baseline, candidate, limit, missing)
    if not baseline:
        return None
    first, second = books
    assert first is not None
    assert second is not None
    line = None if baseline == candidate else _most_different(quantity, (first, second))
    return Compared(quantity, baseline, candidate, limit, "", line, _worst(quantity, (first, second)))


def _worst(quantity: Quantity, books: tuple[Ledger, Ledger]) -> tuple[Fraction, Fraction] | None:
    """Both values at the greatest number of passes; None where none is drawn, or one is unbounded."""
    draws = [drawn(book.spec, book.convention, book.context) for book in books]
    if not any(draws) or any(draw and draw.worst is None for draw in draws):
        return None
    budgets = (draw.worst if draw else book.budget for draw, book in zip(draws, books, strict=True))
    first, second = (Fraction(getattr(budget, quantity)) for budget in budgets)
    return first, second


def common_context(baseline: Head, candidate: Head, override: Context | None = None) -> Context:
    """The one context that both models are counted at, whichever is named first: the caller's, or the longer one.

    Where a model has sliding windows and only a mean is known, it is that of one causal document.
    """
    models = [end for end in (baseline, candidate) if isinstance(end, ModelSpec)]
    stated = [context_of(end) for end in models] or [Context.causal(DEFAULT_TOKENS)]
    longest = max(stated, key=lambda context: context.mean)
    if longest.mean > min(context.mean for context in stated):
        longest = replace(longest, origin=f"{longest.origin}, the longer of the two")
    return _with_lengths(longest if override is None else override, *models)


def _with_lengths(context: Context, *models: ModelSpec) -> Context:
    """The context, as one document where a model has windows to cut it by."""
    return context.document if any(model.windowed for model in models) else context


def unstated(end: Head) -> str:
    """What keeps a model from being counted, by the names of a spec's fields; empty for one that can be."""
    if isinstance(end, ModelSpec):
        return ""
    if isinstance(end, IncompleteSystem):
        fields = end.missing
    else:
        required = [name for name, field in ModelSpec.model_fields.items() if field.is_required()]
        fields = [name for name in required if getattr(end, name, None) is None]
    return f"{end.name} does not state {', '.join(fields)}"


def _one_vocabulary(ends: tuple[Head, Head]) -> list[str]:
    """What keeps either end from being counted where one alone states a vocabulary: one head would compare nothing."""
    gaps = ["" if getattr(end, "vocab_size", None) else f"{end.name} does not state vocab_size" for end in ends]
    return gaps if gaps.count("") == 1 else ["", ""]


def budgets(found: Audit, convention: Convention, override: Context | None) -> tuple[Budget, Budget, Budget] | None:
    """Baseline, candidate and the baseline's control of Eq. 1, under another convention, and in another context."""
    if not (isinstance(found.baseline, ModelSpec) and isinstance(found.candidate, ModelSpec)):
        return None
    models = found.baseline, found.candidate, control_of(found.baseline)
    context = _with_lengths(override or found.context, *models)
    first, second, third = (ledger(model, convention, context).budget for model in models)
    return first, second, third


def _most_different(quantity: Quantity, books: tuple[Ledger, Ledger]) -> Line | None:
    """The component whose two values are furthest apart; the first in the ledger where several are.

    Components that are the same weights under another name are one.
    """
    column = _COLUMNS[quantity]
    rows: dict[str, tuple[list[Row], list[Row]]] = {}
    for side, book in enumerate(books):
        for row in book.rows:
            if column(book, row):
                rows.setdefault(family(row.component), ([], []))[side].append(row)
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
