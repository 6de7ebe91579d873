"""Plans and tables of ablations as text and as JSON."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

from smelt_match.ablate.compare import Row, Table
from smelt_match.ablate.folder import ARMS, RATES, SHORTLIST
from smelt_match.ablate.plan import Plan
from smelt_match.ablate.points import Point
from smelt_match.ablate.run import Finished, RunState
from smelt_match.ablate.statistics import LEVEL, POWER, Estimate
from smelt_match.export import ablation, document
from smelt_match.export.table import Column, Format, render
from smelt_match.units import round_half_even

NOT_ESTIMABLE = "not estimable"
PARTS = {ARMS: "arms", SHORTLIST: "short runs of the shortlist", RATES: "short runs of learning rates"}
STATUS = (
    Column("part", "", data_only=True),
    Column("name", "run", left=True),
    Column("state", "state", left=True),
    Column("reason", "", left=True),
)


def plan_text(plan: Plan, shown: Format, settings: dict[str, Any]) -> str:
    """A plan in a format."""
    if shown == "json":
        return document.to_json(_plan_json(plan, settings))
    return render(ablation.PLAN, [_plan_row(plan, point) for point in plan.points], shown, "\n".join(_totals(plan)))


def _flag(point: Point) -> str:
    """What a reader must know of a point: what was relaxed, and where it is beyond the paper's tolerances."""
    parts = [point.note] if point.note else []
    if point.beyond:
        parts.append(f"{', '.join(point.beyond)} beyond 4 %, 1 %, 4 %: {point.mend or 'the first match is within'}")
    return "; ".join(parts)


def _plan_row(plan: Plan, point: Point) -> dict[str, Any]:
    return {
        "point": point.name,
        "layout": str(point.variant.layout),
        "executed_layers": len(point.variant.layout.visits),
        **document.counted_row(point.best.counted),
        **({} if point.is_reference else document.deviation_row(point.best.off)),
        "flops_train": plan.flops(point),
        "seeds": plan.seeds,
        "note": "baseline" if point.is_reference else _flag(point),
    }


def _totals(plan: Plan) -> list[str]:
    book = plan.points[0].best.counted.ledger
    extent = plan.extent
    branches = f"{len(extent.forks)} branch{'es' if len(extent.forks) != 1 else ''} of {extent.tokens_branch:,}"
    lines = [
        document.convention_note(book),
        f"{plan.arms} arms ({len(plan.points)} points, {plan.seeds} seed{'s' if plan.seeds > 1 else ''}); each "
        f"{extent.tokens:,} tokens: a trunk of {extent.tokens_trunk:,} in {extent.steps:,} steps of {extent.rows} × "
        f"{extent.context:,}, and {branches}",
        f"training FLOPs in total: {ablation.scientific(plan.flops_total)} by convention {book.convention.name!r}; "
        "validation not counted",
    ]
    if plan.shortlist > 1 or plan.lr_sweep:
        parts = ["the shortlist"] * (plan.shortlist > 1) + ["learning rates"] * plan.lr_sweep
        most = ablation.scientific(plan.flops_short_runs)
        lines.append(f"short runs of {' and '.join(parts)}: at most {most} FLOPs on top")
    if extent.vocab_size is None:
        lines.append("no corpus was opened: embedding and output head are left out of memory and disk")
    lines.append(
        f"memory of the largest arm: {_bytes(plan.bytes_memory)} for weights, gradients and AdamW in float32, "
        f"activations on top; disk: at most {_bytes(plan.bytes_disk)} of checkpoints"
    )
    return lines


def _bytes(value: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1000:.0f} kB"


def _plan_json(plan: Plan, settings: dict[str, Any]) -> dict[str, Any]:
    """A plan without anything that was measured: the same question gives the same bytes."""
    book = plan.points[0].best.counted.ledger
    return {
        "schema_version": document.SCHEMA_VERSION,
        **settings,
        "convention": document.convention_json(book.convention, book.context),
        "seeds": plan.seeds,
        "num_arms": plan.arms,
        "steps_trunk": plan.extent.steps,
        "steps_branch": plan.extent.branch_steps,
        "forks": list(plan.extent.forks),
        "rows": plan.extent.rows,
        "context": plan.extent.context,
        "tokens_trunk": plan.extent.tokens_trunk,
        "tokens_branch": plan.extent.tokens_branch,
        "tokens_per_arm": plan.extent.tokens,
        "flops_train_total": round_half_even(plan.flops_total),
        "flops_train_short_runs_at_most": round_half_even(plan.flops_short_runs),
        "bytes_memory_state": plan.bytes_memory,
        "bytes_disk_at_most": plan.bytes_disk,
        "points": [_point_json(plan, point) for point in plan.points],
    }


def _point_json(plan: Plan, point: Point) -> dict[str, Any]:
    return {
        "name": point.name,
        "variant": point.variant.name,
        "baseline": point.baseline.spec.name,
        "is_baseline": point.is_reference,
        "layout": {
            "text": str(point.variant.layout),
            "canonical": point.variant.layout.canonical,
            "num_layers": point.variant.layout.num_layers,
            "executed_layers": len(point.variant.layout.visits),
        },
        "candidates": [
            {"rank": each.rank, **document.counted_json(each.counted), "deviation": each.off.as_json()}
            for each in point.candidates
        ],
        "beyond_paper_tolerance": list(point.beyond),
        "mend": point.mend or None,
        "note": point.note or None,
        "flops_train_per_arm": round_half_even(plan.flops(point)),
    }


def result_text(finished: Finished, tables: list[Table], shown: Format, settings: dict[str, Any]) -> str:
    """The tables of a sweep in a format."""
    if shown == "json":
        return document.to_json(_result_json(finished, tables, settings))
    columns = ablation.result_columns(_categories(tables), any(table.source for table in tables))
    if shown == "csv":
        rows = [
            _data_row(table, row) | {"learning_rate": finished.rate(row.point.name)}
            for table in tables
            for row in table.rows
        ]
        return render(ablation.data_columns(columns), rows, shown)
    parts = []
    for table in tables:
        own = ablation.result_columns(_categories([table]), bool(table.source))
        title = f"{table.baseline} after {table.tokens:,} training tokens"
        note = "\n".join([*table.sentences, *_explained(finished, table)])
        text = render(own, [_shown_row(row) for row in table.rows], shown, note if shown != "tex" else "")
        if shown == "tex":
            text = "".join(f"% {line}\n" for line in [title, *note.split("\n")]) + text
            parts.append(text)
        else:
            parts.append(f"{title}\n\n{text}")
    return "\n".join(parts)


def _categories(tables: list[Table]) -> list[str]:
    return sorted({name for table in tables for row in table.rows for name in row.categories})


def _pair(found: Estimate) -> tuple[float, float | None]:
    return found.mean, found.half


def _values(row: Row) -> dict[str, Any]:
    """What a row shows beside its estimates."""
    return {
        "point": row.point.variant.name,
        "layout": str(row.point.variant.layout),
        "executed_layers": len(row.point.variant.layout.visits),
        "seeds": len(row.seeds),
        "p": row.p,
        "detectable": None if row.difference is None else row.difference.detectable,
        "mismatch": row.mismatch_nats,
        "share": row.share,
        "printed_loss": None if row.printed is None else row.printed[0],
        "printed_difference": None if row.printed is None or row.point.is_reference else row.printed[1],
    }


def _estimates(row: Row) -> dict[str, Estimate]:
    found = {
        "loss": row.loss,
        "mean_over_sources": row.mean_over_sources,
        **({} if row.bits_per_byte is None else {"bits_per_byte": row.bits_per_byte}),
        **{f"category_{name}": value for name, value in row.categories.items()},
    }
    return found if row.difference is None else {**found, "difference": row.difference.estimate}


def _shown_row(row: Row) -> dict[str, Any]:
    values = _values(row)
    if row.mismatch is not None and row.mismatch_nats is None:
        values |= {"mismatch": NOT_ESTIMABLE, "share": NOT_ESTIMABLE}
    return {**values, **{name: _pair(value) for name, value in _estimates(row).items()}}


def _data_row(table: Table, row: Row) -> dict[str, Any]:
    found = {"baseline": table.baseline, "tokens": table.tokens, **_values(row)}
    for name, value in _estimates(row).items():
        found |= {name: value.mean, f"{name}_half_width": value.half}
    return found


def _explained(finished: Finished, table: Table) -> list[str]:
    """How the numbers of a table are to be read."""
    rows = table.rows
    seeds = max(len(row.seeds) for row in rows)
    lines = [
        "val. loss: nats per token over all validation tokens; mean of sources: the plain mean over sources",
        "bits/byte: of the text of these tokens; of a source that is read in part, in proportion to its tokens",
    ]
    if seeds > 1:
        lines.append(
            f"±: t-interval at {LEVEL:.0%} over {seeds} seeds; p: paired t-test against the baseline, seed by seed, "
            f"Holm; detectable: the difference that {seeds} seeds would show with {POWER:.0%} power at 5 %"
        )
    priced = next((row.mismatch for row in rows if row.mismatch is not None), None)
    if priced is not None:
        lines.append(
            "mismatch: what the deviations of FLOPs and parameters are worth in nats along the surface "
            f"{priced.surface!r}; share: of the difference"
        )
        if priced.reasons:
            lines.append(f"{NOT_ESTIMABLE}: outside the surface's range: {priced.reasons[0]}")
    if table.source:
        lines.append(f"paper: {table.source}, at its own scale and tokens; one training run a point")
    lines.append(_rates_note(finished, table))
    flagged = [f"{row.point.variant.name}: {_flag(row.point)}" for row in rows if _flag(row.point)]
    if finished.choices:
        lines.append(
            "looped points are the best of a shortlist by short runs on the same validation set; the baseline had no "
            "such choice, which favours them"
        )
    return lines + flagged


def _rates_note(finished: Finished, table: Table) -> str:
    if not finished.rates:
        return f"learning rate: {finished.learning_rate:g}, one for all arms"
    edge = " (at the edge of those tried)"
    each = ", ".join(
        f"{row.point.variant.name} {rate.value:g}{edge if rate.at_edge else ''}"
        for row in table.rows
        for rate in [finished.rates[row.point.name]]
    )
    return f"learning rate: each point its own, the best of short runs on the same validation set: {each}"


def _result_json(finished: Finished, tables: list[Table], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": document.SCHEMA_VERSION,
        **settings,
        "tables": [
            {
                "baseline": table.baseline,
                "tokens": table.tokens,
                "printed_source": table.source or None,
                "sentences": list(table.sentences),
                "rows": [_row_json(row) | {"learning_rate": finished.rate(row.point.name)} for row in table.rows],
            }
            for table in tables
        ],
        "choices": {
            name: {
                "rank": choice.candidate.rank,
                "losses": {str(rank): list(losses) for rank, losses in sorted(choice.losses.items())},
            }
            for name, choice in sorted(finished.choices.items())
        },
        "learning_rates": {
            name: {
                "value": rate.value,
                "at_edge": rate.at_edge,
                "losses": {f"{each:g}": loss for each, loss in rate.losses.items()},
            }
            for name, rate in sorted(finished.rates.items())
        },
        "failures": dict(sorted(finished.failures.items())),
    }


def _estimate_json(found: Estimate) -> dict[str, Any]:
    return {"mean": found.mean, "half_width": found.half, "values": list(found.values)}


def _row_json(row: Row) -> dict[str, Any]:
    plain = {name: float(value) if isinstance(value, Decimal) else value for name, value in _values(row).items()}
    del plain["mismatch"], plain["share"], plain["seeds"]
    return {
        **plain,
        "is_baseline": row.point.is_reference,
        "config": row.point.best.spec.config(),
        "deviation": row.point.best.off.as_json(),
        "seeds": list(row.seeds),
        "loss_nats_per_token": _estimate_json(row.loss),
        "mean_over_sources_nats_per_token": _estimate_json(row.mean_over_sources),
        "bits_per_byte": None if row.bits_per_byte is None else _estimate_json(row.bits_per_byte),
        "categories_nats_per_token": {name: _estimate_json(value) for name, value in row.categories.items()},
        "difference_nats": None if row.difference is None else _estimate_json(row.difference.estimate),
        "p_unadjusted": None if row.difference is None else row.difference.p,
        "mismatch_nats": row.mismatch_nats,
        "mismatch_share": row.share,
        "mismatch_not_estimable": list(row.mismatch.reasons) if row.mismatch is not None else [],
        "beyond_paper_tolerance": list(row.point.beyond),
    }


def status_text(states: list[RunState], shown: Format) -> str:
    """The states of a folder's runs in a format: the arms, and apart from them the short runs, where there are any."""
    if shown == "json":
        arms, short = ([each for each in states if (each.part == ARMS) == full] for full in (True, False))
        return document.to_json(
            {
                "schema_version": document.SCHEMA_VERSION,
                "arms": [_state_json(arm) for arm in arms],
                "short_runs": [{"part": run.part, **_state_json(run)} for run in short],
            }
        )
    if shown == "csv":
        return render(STATUS, [vars(run) for run in states], shown)
    parts = []
    for part, title in PARTS.items():
        runs = [run for run in states if run.part == part]
        if runs or part == ARMS:
            counts = Counter(run.state for run in runs)
            note = f"{len(runs)} {title}: " + ", ".join(f"{count} {name}" for name, count in counts.items())
            parts.append(render(STATUS, [vars(run) for run in runs], shown, note))
    return "\n".join(parts)


def _state_json(run: RunState) -> dict[str, Any]:
    return {"name": run.name, "state": run.state, "reason": run.reason or None}
