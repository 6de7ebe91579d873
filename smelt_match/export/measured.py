"""Counted against measured, as a table under the ledger."""

from __future__ import annotations

from typing import Any

from smelt_match.errors import AnswerIsNo
from smelt_match.export.table import Column, Format, render
from smelt_match.measure.agreement import Agreement, Check, context, fault
from smelt_match.units import short_fraction


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else short_fraction(value)


COLUMNS = (
    Column("component", "component", left=True),
    Column("stored_counted", "stored, counted", _number),
    Column("stored_built", "built", _number),
    Column("forward_counted", "forward FLOPs, counted", _number),
    Column("forward_fvcore", "fvcore", _number),
    Column("forward_FlopCounterMode", "FlopCounterMode", _number),
)
SHORT = {"params_stored": "stored", "flops_forward": "forward"}


def measured_rows(found: Agreement) -> list[dict[str, Any]]:
    """A row for each component, the totals last."""
    rows: dict[str, dict[str, Any]] = {}
    for check in found.checks:
        short = SHORT.get(check.quantity)
        if short is not None and check.method != "transformers":
            row = rows.setdefault(check.component, {column.key: None for column in COLUMNS})
            counted = int(check.counted) if check.counted.denominator == 1 else check.counted
            row |= {
                "component": check.component,
                f"{short}_counted": counted,
                f"{short}_{check.method}": check.measured,
            }
    total = rows.pop("total", None)
    return [*rows.values(), *([total] if total is not None else [])]


def measured_text(found: Agreement, shown: Format) -> str:
    """The table with what does not fit into its columns, and the result in a line."""
    rows = measured_rows(found)
    lines = [_line(check) for check in found.checks if check.quantity not in SHORT or check.method == "transformers"]
    if found.documents:
        lines.append(f"run on the meta device: {run_words(found)}; counted by convention {found.convention!r}")
    lines.append(found.words)
    return (render(COLUMNS, rows, shown) + "\n" if rows else "") + "\n".join(lines) + "\n"


def run_words(found: Agreement) -> str:
    """The documents that were run."""
    many = len(found.documents) > 1
    what = f"{len(found.documents)} causal documents" if many else "one causal document"
    mean = short_fraction(context(found.documents).mean)
    return f"{what} of {sum(found.documents):,} tokens{' together' * many}, c = {mean}"


def _line(check: Check) -> str:
    what = {
        "flops_train": "forward and backward FLOPs",
        "kv_elements_per_token": "KV elements of a token",
        "params_stored": "parameters with embedding and output head",
    }[check.quantity]
    counted = int(check.counted) if check.counted.denominator == 1 else check.counted
    return f"{what}: counted {_number(counted)}, measured {check.measured:,} ({check.method})"


def refuse_difference(found: list[Agreement]) -> None:
    """End with "no" where a model differs from its count.

    Raises:
        AnswerIsNo: A line for each row that differs.
    """
    faults = [f"{one.name}: {fault(check)}" for one in found for check in one.different]
    if faults:
        raise AnswerIsNo("\n".join(faults), "counted and measured must be equal: please report this as a bug")
