"""An audit of two models as tables, words and JSON."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from smelt_match.audit.pair import Audit, Compared, Line
from smelt_match.audit.verdict import Verdict, together
from smelt_match.budget.count import control_of, count
from smelt_match.budget.ledger import ledger
from smelt_match.export.document import convention_json, convention_note, counted_json
from smelt_match.export.table import Column, Format, render
from smelt_match.spec.model import Head, ModelSpec
from smelt_match.units import fraction_text, grouped, percent, round_half_even, short_fraction

KV_DTYPE, KV_BYTES = "bf16", 2
NAMES = {
    "flops": "flops_train_per_token",
    "params": "params_total",
    "kv": "kv_elements_per_token",
    "attention": "flops_attention_train_per_token",
    "step_time": "step_time_seconds",
}
WORDS = {
    "flops": "train FLOPs/token",
    "params": "stored parameters",
    "kv": "KV elements/token",
    "attention": "attention FLOPs/token",
    "step_time": "step time, s",
}


def _value(value: Any) -> str:
    return grouped(value) if value.denominator == 1 or value > 1000 else short_fraction(value)


def _ratio(value: Any) -> str:
    return "1" if value == 1 else f"{float(value):.4f}"


def _tolerance(value: Any) -> str:
    return f"{float(value) * 100:g} %"


COLUMNS = (
    Column("baseline_name", "baseline", data_only=True),
    Column("candidate_name", "candidate", data_only=True),
    Column("quantity", "budget", WORDS.__getitem__, left=True),
    Column("baseline", "baseline", _value),
    Column("candidate", "candidate", _value),
    Column("ratio", "ratio", _ratio),
    Column("deviation", "deviation", percent),
    Column("tolerance", "tolerance", _tolerance),
    Column("verdict", "verdict", left=True),
    Column("reason", "reason", data_only=True),
    Column("line", "differs most", data_only=True),
    Column("line_baseline", "its baseline", data_only=True),
    Column("line_candidate", "its candidate", data_only=True),
    Column("convention", "convention", data_only=True),
    Column("mean_attended_context", "c", data_only=True),
)
BY_CONVENTION = (
    Column("convention", "convention", left=True),
    Column("flops", "flops", percent),
    Column("params", "params", percent),
    Column("kv", "kv", percent),
    Column("attention", "attention", percent),
    Column("flops_verdict", "flops", left=True),
    Column("params_verdict", "params", left=True),
    Column("kv_verdict", "kv", left=True),
    Column("mean_attended_context", "c", data_only=True),
)


def audit_rows(found: Audit) -> list[dict[str, Any]]:
    """A row for each quantity."""
    return [
        {
            "baseline_name": found.baseline.name, "candidate_name": found.candidate.name, "quantity": row.quantity,
            "baseline": row.baseline, "candidate": row.candidate, "ratio": row.ratio, "deviation": row.deviation,
            "tolerance": row.tolerance, "verdict": row.verdict and row.verdict.outcome,
            "reason": row.verdict and row.verdict.reason, "line": row.line and row.line.component,
            "line_baseline": row.line and row.line.values[0], "line_candidate": row.line and row.line.values[1],
            "convention": found.convention.name, "mean_attended_context": short_fraction(found.context.mean),
        }
        for row in found.compared
    ]  # fmt: skip


def audit_text(found: Audit, shown: Format) -> str:
    """The table, the overall verdict, what differs most, and how it was counted."""
    timed = [row.verdict for row in found.compared if row.quantity == "step_time" and row.verdict]
    beside = "".join(f"; step time: {verdict}" for verdict in timed)
    title = f"{found.candidate.name} against {found.baseline.name}: {found.verdict}{beside}\n\n"
    lines = [*_missing(found), *(_line(row) for row in found.compared if row.line), *_bytes(found), *_open(found)]
    lines.append(_note(found))
    note = "\n".join(lines) if shown == "table" else "; ".join(lines)
    return (title if shown == "table" else "") + render(COLUMNS, audit_rows(found), shown, note)


def _missing(found: Audit) -> list[str]:
    """Why something cannot be determined, each reason once."""
    return list(dict.fromkeys(f"not determinable: {row.missing}" for row in found.compared if row.missing))


def _line(row: Compared) -> str:
    line = row.line
    assert line is not None
    here, there = (
        f"{_value(value)}" + (f" ({place})" if place else "")
        for value, place in zip(line.values, line.places, strict=True)
    )
    return (
        f"{row.quantity} differ{'s' * (row.quantity in ('kv', 'attention'))} most in {line.component}: {here}, {there}"
    )


def _bytes(found: Audit) -> list[str]:
    """The cache in bytes."""
    row = found["kv"]
    if row.baseline is None or row.candidate is None:
        return []
    first, second = (_value(value * KV_BYTES) for value in (row.baseline, row.candidate))
    return [f"KV cache in {KV_DTYPE}: {first} and {second} bytes per token"]


def _open(found: Audit) -> list[str]:
    """What is drawn in training, and what a spec had to assume because its source leaves it open."""
    lines = [f"passes of {name} are drawn, the mean is counted: {source}" for name, source in found.drawn.items()]
    lines += [
        f"{row.quantity} at the most passes: {_value(row.worst[0])} and {_value(row.worst[1])}, "
        f"{percent(row.worst[1] / row.worst[0] - 1)}"
        for row in found.compared
        if row.worst is not None
    ]
    ends = dict.fromkeys((found.baseline.name, found.candidate.name))
    assumed = {end.name: end.assumed for end in (found.baseline, found.candidate)}
    return lines + [
        f"{name} assumes {', '.join(assumed[name])}, left open by its source" for name in ends if assumed[name]
    ]


def _note(found: Audit) -> str:
    """How both were counted, and what either states itself where that is something else."""
    known = next((end for end in (found.baseline, found.candidate) if isinstance(end, ModelSpec)), None)
    if known is None:
        return f"convention {found.convention.name!r}"
    text = convention_note(ledger(known, found.convention, found.context)) + "; the same context for both"
    own = {
        end.name: end.context
        for end in (found.baseline, found.candidate)
        if isinstance(end, ModelSpec) and end.context not in (None, found.context.mean)
    }
    states = [f"{name} itself states c = {short_fraction(context)}" for name, context in own.items() if context]
    return text + (f" ({', '.join(states)})" if states else "")


def conventions_text(audits: list[Audit], shown: Format) -> str:
    """One pair under several conventions, and which verdicts flip."""
    rows = [
        {
            "convention": found.convention.name, "mean_attended_context": short_fraction(found.context.mean),
            **{row.quantity: row.deviation for row in found.compared},
            **{f"{name}_verdict": verdict.outcome for name, verdict in found.verdicts.items()},
        }
        for found in audits
    ]  # fmt: skip
    lines = [*_missing(audits[0]), *flip_lines(audits)]
    context = audits[0].context
    lines.append(f"mean attended context c = {short_fraction(context.mean)} ({context.origin}), the same for both")
    return render(BY_CONVENTION, rows, shown, "\n".join(lines) if shown == "table" else "; ".join(lines))


def over_conventions(audits: list[Audit]) -> dict[str, Verdict]:
    """One verdict for each budget over all conventions."""
    return {
        name: together({found.convention.name: found.verdicts[name] for found in audits}) for name in audits[0].verdicts
    }


def flip_lines(audits: list[Audit]) -> list[str]:
    """A line for each budget whose verdict depends on the convention, or one that says that none does."""
    lines = [
        f"{name} flips: {verdict.reason}"
        for name, verdict in over_conventions(audits).items()
        if len({found.verdicts[name].outcome for found in audits}) > 1
    ]
    return lines or ["no verdict depends on the convention"]


def audit_json(found: Audit) -> dict[str, Any]:
    """An audit as a document part: raw integers, exact rationals, verdicts, and how it was counted."""
    return {
        "baseline": _end(found.baseline, found, found.baseline),
        "candidate": _end(found.candidate, found, found.baseline),
        "convention": convention_json(found.convention, found.context),
        "verdict": verdict_json(found.verdict),
        "passes_drawn": found.drawn,
        "assumed": {end.name: end.assumed for end in (found.baseline, found.candidate) if end.assumed},
        "budgets": [_budget_json(row) for row in found.compared],
    }


def verdict_json(verdict: Verdict | None) -> dict[str, str] | None:
    """A verdict with its reason."""
    return None if verdict is None else {"outcome": verdict.outcome, "reason": verdict.reason}


def _end(end: Head, found: Audit, baseline: Head) -> dict[str, Any]:
    """A model with its budgets; its sparsity is against the baseline's control."""
    if not isinstance(end, ModelSpec):
        return {"name": end.name, "config": None, "budget": None, "sparsity": None, "source": end.source}
    control = control_of(baseline if isinstance(baseline, ModelSpec) else end)
    return {**counted_json(count(end, found.convention, found.context, control)), "source": end.source}


def _budget_json(row: Compared) -> dict[str, Any]:
    extra = {}
    if row.quantity == "kv" and row.baseline is not None and row.candidate is not None:
        extra = {"kv_bytes_per_token": [int(value) * KV_BYTES for value in (row.baseline, row.candidate)],
                 "kv_dtype": KV_DTYPE}  # fmt: skip
    return {
        "budget": row.quantity,
        "quantity": NAMES[row.quantity],
        "baseline": _number(row.quantity, row.baseline),
        "candidate": _number(row.quantity, row.candidate),
        "ratio": None if row.ratio is None else float(row.ratio),
        "ratio_exact": None if row.ratio is None else fraction_text(row.ratio),
        "deviation": None if row.deviation is None else float(row.deviation),
        "tolerance": None if row.tolerance is None else fraction_text(row.tolerance),
        "verdict": verdict_json(row.verdict),
        "worst": None if row.worst is None else [_number(row.quantity, value) for value in row.worst],
        "differs_most": None if row.line is None else _line_json(row.line),
        **extra,
    }


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "component": line.component,
        "places": list(line.places),
        "values": [round_half_even(value) for value in line.values],
    }


def _number(quantity: str, value: Fraction | None) -> int | float | None:
    if value is None:
        return None
    return float(value) if quantity == "step_time" else round_half_even(value)
