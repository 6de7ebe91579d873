"""A published table of matched budgets beside the same table counted, with every disagreement explained by numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, get_args

from smelt_match.audit.pair import Audit, Quantity
from smelt_match.audit.published import PrintedTable, Study, pair_name
from smelt_match.audit.verdict import Outcome
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.parts import params_value_tables
from smelt_match.budget.tolerance import BUDGETS
from smelt_match.export.audited import NAMES, WORDS, verdict_json
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Format, comments, render
from smelt_match.spec.model import ModelSpec
from smelt_match.units import fraction_text, grouped, percent, short_fraction

SHORT = dict(zip(get_args(Outcome), ("yes", "partly", "no", "?"), strict=True))
EXAMPLES = 3
KINDS = {"flops": "equal FLOPs", "params": "equal parameters"}


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
    Column("footnote", "footnote", data_only=True),
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
            "footnote": study.row.footnote, "convention": convention.name,
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
    where = "the longer context of its two models" if context is None else context.origin
    note = (
        f"{table.source}: {agreed} of the {of} printed verdicts that can be counted agree; counted by convention "
        f"{convention.name!r}, each pair in {where}"
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
    span = {"partly": ["span (partly)"], "disagree": ["span"]}.get(study.spans_verdict or "", [])
    return [name for name in BUDGETS if study.agrees(name) is False] + span


def study_lines(study: Study) -> list[str]:
    """The footnote of a row, each disagreement with the arithmetic, and what keeps a verdict from being counted."""
    lines = [f"{study.row.work}, footnote: {study.row.footnote}"] * bool(study.row.footnote)
    lines += [f"{study.row.work}, {name}: {_explained(study, name)}" for name in BUDGETS if study.agrees(name) is False]
    if study.spans_verdict in ("partly", "disagree"):
        how = "some of the layouts have it" if study.spans_verdict == "partly" else "no layout has it"
        text = f"printed {_spans(study.row.spans)}; the layouts give {_spans(study.spans)}: {how}"
        lines.append(f"{study.row.work}, span: {text}")
    reasons = [row.missing for one in study.audits for row in one.compared if row.missing]
    lines += [f"{study.row.work}: not determinable: {reason}" for reason in dict.fromkeys([*reasons, *study.absent])]
    return lines


def _explained(study: Study, budget: Quantity) -> str:
    """Which pairs speak against the printed verdict, by how much, of which kind, and what in them."""
    printed, ours = getattr(study.row.printed, budget), study.verdicts[budget].outcome
    against = study.against(budget)
    text = f"printed {printed}, counted {ours}: {len(against)} of {len(study.audits)} pairs {_against(printed)}"
    kinds = study.by_kind(against)
    if len(kinds) > 1:
        text += f" ({', '.join(f'{some} of {all_} at {KINDS[kind]}' for kind, (some, all_) in kinds.items())})"
    if len(against) <= EXAMPLES:
        return f"{text}: " + "; ".join(_arithmetic(study, one, budget) for one in against)
    off = sorted(one[budget].deviation or Fraction(0) for one in against)
    reach = f"each {percent(off[0])}" if off[0] == off[-1] else f"{percent(off[0])} to {percent(off[-1])}"
    which = "the furthest off" if off[0] != off[-1] else "the first of them"
    return f"{text}, {reach}; {which} {_arithmetic(study, against[0], budget)}"


def _against(printed: str) -> str:
    """What the pairs that speak against a printed verdict are."""
    return {"matched": "are not matched", "not matched": "are matched"}.get(printed, "in all")


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
    text += _value_tables(found) if budget == "params" else ""
    others = [f"{name} {percent(value)}" for name, value in study.otherwise(found, budget).items()]
    return text + (f", as printed by convention {', '.join(others)}" if others and row.deviation else "")


def _value_tables(found: Audit) -> str:
    """What both keep in tables of value embeddings, which a count without embeddings leaves out."""
    ends = [end for end in (found.baseline, found.candidate) if isinstance(end, ModelSpec)]
    first, *others = (params_value_tables(end) for end in ends)
    if found.convention.input_embedding or not any((first, *others)):
        return ""
    each = f"{grouped(first)} of each" if [first] == others else " and ".join(map(grouped, (first, *others)))
    return f", value tables ({each}) not counted"


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
            "agrees": None if study.spans_verdict is None else study.spans_verdict == "agree",
            "verdict": study.spans_verdict,
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
        "pairs": [_pair_json(found, kind) for found, kind in zip(study.audits, study.kinds, strict=True)],
    }


def _pair_json(found: Audit, kind: str | None) -> dict[str, Any]:
    return {
        "baseline": found.baseline.name,
        "candidate": found.candidate.name,
        "compared_at": kind,
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
