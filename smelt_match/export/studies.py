"""A published table of matched budgets beside the same table counted, with every disagreement explained by numbers."""

from __future__ import annotations

from typing import Any, get_args

from smelt_match.audit.pair import Audit, Quantity
from smelt_match.audit.published import PrintedTable, Study, pair_name
from smelt_match.audit.verdict import Outcome
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.tolerance import BUDGETS
from smelt_match.export.audited import NAMES, WORDS, verdict_json
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Format, comments, render
from smelt_match.units import fraction_text, grouped, percent, short_fraction

SHORT = dict(zip(get_args(Outcome), ("yes", "partly", "no", "?"), strict=True))
EXAMPLES = 3


def _spans(value: Any) -> str:
    return ", ".join(map(str, value)) or "–"


COLUMNS = (
    Column("work", "work", left=True),
    Column("architecture", "arch.", left=True),
    Column("pairs", "pairs"),
    *(
        column
        for name in BUDGETS
        for column in (
            Column(f"{name}_printed", f"{name}, printed", SHORT.__getitem__, left=True),
            Column(f"{name}_counted", "counted", SHORT.__getitem__, left=True),
        )
    ),
    Column("spans_printed", "span, printed", _spans, left=True),
    Column("spans_counted", "counted", _spans, left=True),
    Column("disagrees", "disagrees", lambda names: ", ".join(names) or "–", left=True),
    Column("convention", "convention", data_only=True),
)


def studies_rows(studies: list[Study], convention: Convention) -> list[dict[str, Any]]:
    """A row for each study."""
    return [
        {
            "work": study.row.work, "architecture": study.row.architecture, "pairs": len(study.audits),
            **{f"{name}_printed": getattr(study.row.printed, name) for name in BUDGETS},
            **{f"{name}_counted": study.verdicts[name].outcome for name in BUDGETS},
            "spans_printed": study.row.spans, "spans_counted": study.spans, "disagrees": _disagreements(study),
            "convention": convention.name,
        }
        for study in studies
    ]  # fmt: skip


def studies_text(
    table: PrintedTable, studies: list[Study], convention: Convention, shown: Format, context: Context | None = None
) -> str:
    """The table, and under it each disagreement and what cannot be determined."""
    rows = studies_rows(studies, convention)
    if shown == "csv":
        lists = ("spans_printed", "spans_counted", "disagrees")
        rows = [{**row, **{key: ", ".join(map(str, row[key])) for key in lists}} for row in rows]
    lines = [line for study in studies for line in study_lines(study)]
    agreed, of = agreement(studies)
    note = (
        f"{table.source}: {agreed} of the {of} printed verdicts that can be counted agree; counted by convention "
        f"{convention.name!r}, each pair in " + ("the longer context of its two models" if context is None else context.origin)
    )
    text = render(COLUMNS, rows, shown, note)
    if shown == "csv":
        return text
    if shown == "tex":
        return text + "\n" + comments("\n".join(lines))
    return text + "\n" + "".join(f"- {line}\n" if shown == "md" else f"{line}\n" for line in lines)


def agreement(studies: list[Study]) -> tuple[int, int]:
    """(printed verdicts that ours agree with, verdicts that can be counted)."""
    known = [agrees for study in studies for name in BUDGETS if (agrees := study.agrees(name)) is not None]
    return sum(known), len(known)


def _disagreements(study: Study) -> list[str]:
    return [name for name in BUDGETS if study.agrees(name) is False] + ["span"] * bool(study.spans_unlike)


def study_lines(study: Study) -> list[str]:
    """Each disagreement of a row with the arithmetic, and what keeps a verdict from being counted."""
    lines = [f"{study.row.work}, {name}: {_explained(study, name)}" for name in BUDGETS if study.agrees(name) is False]
    if study.spans_unlike:
        lines.append(
            f"{study.row.work}, span: printed {_spans(study.row.spans)}; the layouts give {_spans(study.spans)}"
        )
    reasons = [row.missing for one in study.audits for row in one.compared if row.missing]
    lines += [f"{study.row.work}: not determinable: {reason}" for reason in dict.fromkeys([*reasons, *study.absent])]
    return lines


def _explained(study: Study, budget: Quantity) -> str:
    """Which pairs speak against the printed verdict, by how much, and what in them."""
    printed, ours = getattr(study.row.printed, budget), study.verdicts[budget].outcome
    against = study.against(budget)
    pairs = "; ".join(_arithmetic(study, one, budget) for one in against[:EXAMPLES])
    more = f"; and {len(against) - EXAMPLES} more" if len(against) > EXAMPLES else ""
    return f"printed {printed}, counted {ours}: {len(against)} of {len(study.audits)} pairs: {pairs}{more}"


def _arithmetic(study: Study, found: Audit, budget: Quantity) -> str:
    row = found[budget]
    assert row.baseline is not None
    assert row.candidate is not None
    assert row.ratio is not None
    assert row.deviation is not None
    ratio = short_fraction(row.ratio) if row.ratio.denominator == 1 else f"{float(row.ratio):.4f}"
    text = f"{pair_name(found)}: {WORDS[budget]} {grouped(row.baseline)} and {grouped(row.candidate)}, ratio {ratio}"
    if row.deviation:
        text += f" ({percent(row.deviation)})"
    if row.line is not None:
        text += f", most by {row.line.component} ({percent(row.line.difference / row.baseline)} of the baseline's)"
    matrices = found.flops_without_attention if budget == "flops" else None
    if matrices is not None:
        text += f", {percent(matrices)} without attention scores"
    others = [f"{name} {percent(value)}" for name, value in study.otherwise(found, budget).items()]
    return text + (f", as printed by convention {', '.join(others)}" if others and row.deviation else "")


def studies_json(table: PrintedTable, studies: list[Study], convention: Convention) -> dict[str, Any]:
    """The document of a recomputed table."""
    agreed, of = agreement(studies)
    return {
        "schema_version": SCHEMA_VERSION,
        "table": table.name,
        "source": table.source,
        "convention": convention.name,
        "agreement": {"agreed": agreed, "countable": of},
        "rows": [_row_json(study) for study in studies],
    }


def _row_json(study: Study) -> dict[str, Any]:
    return {
        "work": study.row.work,
        "architecture": study.row.architecture,
        "footnote": study.row.footnote,
        "spans": {
            "printed": [span.model_dump() for span in study.row.spans],
            "counted": [span.model_dump() for span in study.spans],
            "agrees": not study.spans_unlike if study.spans else None,
        },
        "budgets": {
            name: {
                "printed": getattr(study.row.printed, name),
                "counted": verdict_json(study.verdicts[name]),
                "agrees": study.agrees(name),
            }
            for name in BUDGETS
        },
        "explanations": study_lines(study),
        "pairs": [_pair_json(found) for found in study.audits],
    }


def _pair_json(found: Audit) -> dict[str, Any]:
    return {
        "baseline": found.baseline.name,
        "candidate": found.candidate.name,
        **{
            NAMES[row.quantity]: {
                "baseline": None if row.baseline is None else round(row.baseline),
                "candidate": None if row.candidate is None else round(row.candidate),
                "ratio_exact": None if row.ratio is None else fraction_text(row.ratio),
                "verdict": verdict_json(row.verdict),
            }
            for row in found.compared
        },
    }
