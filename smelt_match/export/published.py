"""Every figure that ships with the package, counted anew: what sources print, beside what we count."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.ledger import ledger
from smelt_match.errors import AnswerIsNo
from smelt_match.export.expected import Comparison, compare
from smelt_match.export.table import Column
from smelt_match.spec.family import shipped
from smelt_match.spec.model import Head, ModelSpec
from smelt_match.spec.published import PublishedFigure, real_models
from smelt_match.units import Printed, round_half_even

BF16_BYTES = 2
UNKNOWN = "cannot be counted from what is printed"
MEANINGS = {
    "params_total": "all parameters",
    "params_without_embeddings": "no embedding, no head",
    "params_active": "one traversal, embedding and head",
    "params_active_without_lookup": "one traversal, head only",
    "params_executed": "every visit, no embedding, no head",
    "kv_bytes_per_token": "BF16, a slot for each visit",
}


@dataclass(frozen=True)
class Verified:
    """One figure and its count.

    Attributes:
        convention: What is counted, in words or as a convention with its document length.
        figure: As the source prints it.
        basis: ``published``, ``built`` or ``arithmetic``.
        note: What was added to our count because the source counts it, and what could not be counted.
    """

    model: str
    quantity: str
    convention: str
    figure: str
    counted: Fraction | None
    agrees: bool | None
    basis: str
    source: str
    note: str = ""


def verify_all() -> list[Verified]:
    """The figures of real models, then those of the shipped specs, in the order of their files."""
    found = [_real(model.spec, figure) for model in real_models() for figure in model.figures]
    return found + [_shipped(entry.spec, line) for entry in shipped().values() for line in compare(entry.spec)]


def _shipped(spec: Head, line: Comparison) -> Verified:
    source, note = spec.source.partition(";")[0], "" if line.counted is not None else UNKNOWN
    return Verified(spec.name, line.name, "paper", line.printed, line.counted, line.agrees, "published", source, note)


def _real(spec: ModelSpec, figure: PublishedFigure) -> Verified:
    counted = _count(spec, figure) + figure.beyond
    meaning = MEANINGS.get(figure.quantity) or f"{figure.convention}, {figure.tokens:,} tokens"
    note = f"{figure.beyond:,} of them: {figure.why}" if figure.beyond else ""
    agrees = Printed(figure.value).agrees(counted)
    return Verified(
        spec.name, figure.quantity, meaning, figure.value, counted, agrees, figure.basis, figure.source, note
    )


def _count(spec: ModelSpec, figure: PublishedFigure) -> Fraction:
    context = Context.causal(figure.tokens)
    if figure.quantity == "flops_train_per_token":
        return ledger(spec, convention(figure.convention or "paper"), context).budget.flops
    bare = ledger(spec, CONVENTIONS["paper"], context).totals
    if figure.quantity == "kv_bytes_per_token":
        return Fraction(bare.kv * BF16_BYTES)
    counts = active_counts(spec)
    found = {
        "params_total": counts.total,
        "params_without_embeddings": bare.stored,
        "params_active": counts.with_embeddings,
        "params_active_without_lookup": ledger(spec, CONVENTIONS["torchtitan"], context).totals.active,
        "params_executed": counts.executed,
    }[figure.quantity]
    return Fraction(found or 0)


def _exact(value: Any) -> str:
    whole = value.denominator == 1
    return f"{int(value):,}" if whole else f"{float(value):.6g}"


def _figure(text: Any) -> str:
    return f"{int(text):,}" if str(text).isdigit() else str(text)


COLUMNS = (
    Column("model", "model", left=True),
    Column("quantity", "what", left=True),
    Column("convention", "convention", left=True),
    Column("figure", "figure", _figure),
    Column("counted", "counted", _exact),
    Column("agrees", "agrees", lambda value: "yes" if value else "NO", left=True),
    Column("basis", "basis", left=True),
    Column("source", "source", left=True),
    Column("note", "note", left=True, data_only=True),
)


def verified_rows(found: list[Verified]) -> list[dict[str, Any]]:
    """The rows of the table."""
    return [{column.key: getattr(line, column.key) for column in COLUMNS} for line in found]


def verified_json(found: list[Verified]) -> list[dict[str, Any]]:
    """The rows as JSON: counts rounded half to even where they are rational."""
    rows = verified_rows(found)
    for row, line in zip(rows, found, strict=True):
        counted = line.counted
        whole = counted is not None and (counted.denominator == 1 or counted > 10**6)
        if counted is not None:
            row["counted"] = round_half_even(counted) if whole else f"{counted.numerator}/{counted.denominator}"
    return rows


def summary(found: list[Verified]) -> str:
    """The result in a line."""
    checked = [line for line in found if line.agrees is not None]
    good = sum(line.agrees is True for line in checked)
    left = len(found) - len(checked)
    tail = f"; {left} printed figures cannot be counted and are carried as printed" if left else ""
    notes = [f"\n{line.model}, {line.quantity}: {line.note}" for line in checked if line.note]
    return f"{good} of {len(checked)} figures agree to their last digit{tail}{''.join(notes)}"


def refuse_disagreement(found: list[Verified]) -> None:
    """End with "no" where a count is not what its source prints.

    Raises:
        AnswerIsNo: A line for each figure that disagrees.
    """
    wrong = [line for line in found if line.agrees is False]
    if wrong:
        lines = [
            f"{line.model}: {line.quantity} ({line.convention}) is {_figure(line.figure)} by {line.source}, "
            f"counted {_exact(line.counted)}"
            for line in wrong
        ]
        raise AnswerIsNo("\n".join(lines), "a count that ships with the package is wrong: please report this as a bug")
