"""Results as JSON documents and as table rows: the shapes that other programs may rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, Convention
from smelt_match.budget.count import Counted, control_of, count
from smelt_match.budget.deviation import Deviation, deviation
from smelt_match.budget.ledger import Ledger, Row
from smelt_match.budget.passes import drawn
from smelt_match.export.imported import imported_json
from smelt_match.measure.agreement import Agreement
from smelt_match.spec.family import published_match
from smelt_match.spec.huggingface.reader import Imported
from smelt_match.spec.model import Head, IncompleteSystem, ModelSpec, PublishedRow
from smelt_match.units import Printed, fraction_text, round_half_even, short_fraction

if TYPE_CHECKING:  # `count` starts without the solver and NumPy
    from smelt_match.match.answer import Answer
    from smelt_match.match.fastest import Fastest
    from smelt_match.match.front import FrontPoint
    from smelt_match.match.layouts import LayoutFloor
    from smelt_match.match.problem import Policy, Problem
    from smelt_match.match.study import StudyResult

SCHEMA_VERSION = 1


def to_json(document: dict[str, Any]) -> str:
    """A document as text: stable key order, no NaN, ending in a newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def convention_json(convention: Convention, context: Context) -> dict[str, Any]:
    """The convention that numbers were counted under."""
    return {
        "name": convention.name,
        "mean_attended_context": fraction_text(context.mean),
        "attended_tokens_billed": fraction_text(convention.attended(context)),
        "window": context.window,
        "context_origin": context.origin,
        "router": convention.router,
        "norms": convention.norms,
        "input_embedding": convention.input_embedding,
        "output_head": convention.head,
    }


def counted_json(counted: Counted) -> dict[str, Any]:
    """A model with its budgets."""
    return {
        "name": counted.spec.name,
        "config": counted.spec.config(),
        "budget": counted.budget.as_json(),
        "sparsity": {"value": float(counted.sparsity), "control": counted.control},
    }


class Matched:
    """A solved question with everything that its outputs show, counted once.

    Attributes:
        answer: What the solver said.
        baseline: The baseline, counted.
        rows: (policy, rank, problem, counted model, deviation) of every ranked match.
        published: The published row for this baseline and layout, or None.
        measured: The first match of each policy, built and run; empty where nothing was.
        fastest: The matched model with the fastest training step, or None where none was looked for.
    """

    def __init__(
        self, answer: Answer, top: int, study: StudyResult | None, front: Mapping[Policy, list[FrontPoint]] | None
    ):
        question = answer.question
        self.answer, self.study, self.front = answer, study, front
        self._control = control_of(question.baseline)
        self.baseline = self._count(question.baseline)
        self.rows: list[tuple[str, int, Counted, Deviation]] = []
        for policy in answer.solved:
            assert policy.solution is not None
            for rank, point in enumerate(policy.solution.ranked[:top], start=1):
                self.rows.append((policy.policy, rank, *self._match(policy.solution.problem, point)))
        self.measured: Mapping[str, Agreement] = {}
        self.fastest: Fastest | None = None
        self.published = published_match(question.baseline, question.layout.visits)

    def _count(self, spec: ModelSpec) -> Counted:
        question = self.answer.question
        return count(spec, question.convention, question.context, self._control)

    def _match(self, problem: Problem, point: tuple[int, ...]) -> tuple[Counted, Deviation]:
        base = problem.question.baseline
        counted = self._count(problem.spec_at(point, f"{base.name}_{problem.policy}"[:100]))
        return counted, deviation(counted.budget, self.baseline.budget)

    def published_counted(self) -> tuple[Counted, Deviation] | None:
        """The published row counted like the others, where it can be."""
        if not isinstance(self.published, ModelSpec):
            return None
        counted = self._count(self.published)
        return counted, deviation(counted.budget, self.baseline.budget)

    def as_json(self) -> dict[str, Any]:
        """The document of `solve`."""
        from smelt_match.match.certificate import certificate

        question = self.answer.question
        floors = {policy.policy: policy.floor for policy in self.answer.policies}
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "baseline": counted_json(self.baseline),
            "layout": {
                "text": question.layout.text or question.layout.canonical,
                "canonical": question.layout.canonical,
                "num_layers": question.layout.num_layers,
                "visits": list(question.layout.visits),
            },
            "convention": convention_json(question.convention, question.context),
            "grid": question.grid.name,
            "floors": {
                "kv": {name: None if floor is None else float(floor) for name, floor in floors.items()},
            },
            "matches": [
                {
                    "policy": policy, "rank": rank, **counted_json(counted), "deviation": off.as_json(),
                    "deviation_flops_by_convention": self.by_convention(counted.spec),
                    **self._measured_json(policy, rank),
                }
                for policy, rank, counted, off in self.rows
            ],
            "unavailable": {
                policy.policy: policy.reason for policy in self.answer.policies if policy.solution is None
            },
            "notes": [text for text in (question.reading, *(p.reason for p in self.answer.solved)) if text],
            "published": self._published_json(),
            "certificate": certificate(self.answer),
            "study": None if self.study is None else self.study.as_json(),
        }  # fmt: skip
        if self.fastest is not None:
            from smelt_match.export.step_time import step_time_json

            document["step_time"] = step_time_json(self.fastest)
        if self.front is not None:
            document["front"] = [
                {key: _plain(value) for key, value in row.items() if key != "baseline"} for row in self.front_rows()
            ]
        return document

    def by_convention(self, spec: ModelSpec) -> dict[str, float]:
        """The FLOPs deviation under every named convention: a match under one can be off under another."""
        context = self.answer.question.context
        found = {}
        own = self.answer.question.convention
        for name, convention in {**CONVENTIONS, own.name: own}.items():
            ours = count(spec, convention, context, self._control).budget
            theirs = count(self.answer.question.baseline, convention, context, self._control).budget
            found[name] = float(deviation(ours, theirs).flops)
        return found

    def _measured_json(self, policy: str, rank: int) -> dict[str, Any]:
        found = self.measured.get(policy) if rank == 1 else None
        return {} if found is None else {"measured": found.as_json()}

    def _published_json(self) -> dict[str, Any] | None:
        if self.published is None:
            return None
        counted = self.published_counted()
        if counted is not None:
            return {
                **counted_json(counted[0]),
                "deviation": counted[1].as_json(),
                "source": self.published.source,
                "expected": {name: figure.text for name, figure in self.published.expected.items()},
            }
        assert isinstance(self.published, PublishedRow)
        printed = printed_row(self.published)
        return {
            "name": self.published.name,
            "config": {key: printed[key] for key in ("hidden_size", "num_layers", "num_experts", "experts_per_token")},
            "budget": None,
            "deviation": None,
            "not_decodable": self.published.reason,
            "source": self.published.source,
            "expected": {name: figure.text for name, figure in self.published.expected.items()},
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """The rows of the answer table: baseline, published row, matches."""
        name = self.baseline.spec.name
        rows = [{"baseline": name, "model": "baseline", **counted_row(self.baseline)}]
        if self.published is not None:
            counted = self.published_counted()
            shown = (
                {**counted_row(counted[0]), **deviation_row(counted[1])}
                if counted is not None
                else printed_row(self.published)
            )
            rows.append({"baseline": name, "model": "published", **shown})
        several = any(rank > 1 for _, rank, _, _ in self.rows)
        for policy, rank, match, off in self.rows:
            label = f"{policy} {rank}" if several else policy
            rows.append({"baseline": name, "model": label, **counted_row(match), **deviation_row(off)})
        if self.fastest is not None:
            winner = self.fastest.winner
            match, off = self._match(self.fastest.problems[winner.policy], winner.point)
            label = f"fastest ({winner.policy})"
            rows.append({"baseline": name, "model": label, **counted_row(match), **deviation_row(off)})
        return rows

    def front_rows(self) -> list[dict[str, Any]]:
        """The rows of the Pareto front."""
        rows = []
        for policy in self.answer.solved:
            for point in (self.front or {}).get(policy.policy, []):
                assert policy.problem is not None
                counted, off = self._match(policy.problem, point.point)
                rows.append(
                    {
                        "baseline": self.baseline.spec.name, "model": policy.policy, **counted_row(counted),
                        **deviation_row(off), "worst": point.worst, "shape_distance": point.shape_distance,
                        "alignment": point.alignment,
                    }
                )  # fmt: skip
        return rows


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Fraction) else value


def config_row(spec: ModelSpec) -> dict[str, Any]:
    """A model's dimensions as a table row; heads of the looped blocks follow a slash where they differ."""
    loop_q, loop_kv = spec.loop_heads
    n_q, n_kv = spec.num_attention_heads, spec.num_key_value_heads
    return {
        **spec.config(),
        "query_heads": f"{n_q}" if loop_q == n_q else f"{n_q}/{loop_q}",
        "kv_heads": f"{n_kv}" if loop_kv == n_kv else f"{n_kv}/{loop_kv}",
    }


def counted_row(counted: Counted) -> dict[str, Any]:
    """A model's dimensions and budgets as a table row."""
    return {
        **config_row(counted.spec), **counted.budget.as_json(), "sparsity": float(counted.sparsity),
        **convention_columns(counted.ledger),
    }  # fmt: skip


def convention_columns(book: Ledger) -> dict[str, Any]:
    """How a row was counted, for CSV, where no sentence can stand under the table."""
    return {"convention": book.convention.name, "mean_attended_context": short_fraction(book.context.mean)}


def convention_note(book: Ledger) -> str:
    """How numbers were counted, as a sentence under their table."""
    counted = {True: "counted", False: "not counted"}
    known = book.spec.vocab_size is not None
    parts = [
        f"counted by convention {book.convention.name!r}: mean attended context c = "
        f"{short_fraction(book.context.mean)} ({book.context.origin})"
    ]
    if known or not (book.convention.head or book.convention.input_embedding):
        parts.append(f"embeddings {counted[book.convention.input_embedding]}")
        parts.append(f"output head {counted[book.convention.head]}")
    else:
        parts.append("embeddings and output head left out, since the spec states no vocab_size")
    return ", ".join(parts)


def deviation_row(off: Deviation) -> dict[str, Any]:
    """Deviations as a table row; exact zeros stay exact."""
    return {f"{name}_deviation": value for name, value in vars(off).items()}


def printed_row(spec: Head) -> dict[str, Any]:
    """What is printed of a row that cannot be counted."""
    if isinstance(spec, IncompleteSystem):
        sizes = ("hidden_size", "num_layers", "num_experts", "experts_per_token", "expert_intermediate_size")
        return {name: spec.known[name] for name in sizes if name in spec.known}
    assert isinstance(spec, PublishedRow)
    figures = dict(spec.expected.items())

    def value(name: str) -> Fraction | None:
        return Fraction(figures[name].value) if name in figures else None

    def ratio(name: str) -> Fraction | None:
        figure: Printed | None = figures.get(name)
        return None if figure is None else Fraction(figure.value) - 1

    active, total = value("params_active"), value("params_total")
    return {
        "hidden_size": spec.hidden_size, "num_layers": spec.num_layers, "num_experts": spec.num_experts,
        "experts_per_token": spec.experts_per_token,
        "params_active": None if active is None else int(active),
        "params_total": None if total is None else int(total),
        "flops_deviation": ratio("flops_ratio"), "kv_deviation": ratio("kv_ratio"),
    }  # fmt: skip


def ledger_rows(book: Ledger, numbers: bool = True) -> list[dict[str, Any]]:
    """The ledger as table rows, with the totals last."""
    rows = [
        {
            "component": row.component, "where": row.where, "visits": row.visits,
            "formula": _formula(book, row, numbers), "params_stored": row.stored, "params_active": row.active,
            "params_executed": row.executed, "flops_train_per_token": book.flops(row),
            "kv_elements_per_token": row.kv, **convention_columns(book),
        }
        for row in book.rows
    ]  # fmt: skip
    sums, budget = book.totals, book.budget
    total = {
        "component": "total", "where": "", "visits": "", "formula": "",
        "params_stored": sums.stored, "params_active": sums.active, "params_executed": sums.executed,
        "flops_train_per_token": budget.flops, "kv_elements_per_token": sums.kv, **convention_columns(book),
    }  # fmt: skip
    return [*rows, total]


def _formula(book: Ledger, row: Row, numbers: bool) -> str:
    text = row.written(numbers)
    return text.replace("·c", f"·{short_fraction(book.attended_of(row))}") if numbers else text


def count_json(counted: Counted, imported: Imported | None = None) -> dict[str, Any]:
    """The document of `count` for one model, with the fields of the config it was read from."""
    book = counted.ledger
    sampled = drawn(counted.spec, book.convention, book.context)
    rows = []
    for row, source in zip(ledger_rows(book), [*book.rows, None], strict=True):
        exact = Fraction(row["flops_train_per_token"])
        row = {key: value for key, value in row.items() if key not in convention_columns(book)}
        rows.append(
            {
                **row,
                "formula_symbols": source.written(False) if source is not None else "",
                "flops_train_per_token": round_half_even(exact),
                "flops_train_per_token_exact": fraction_text(exact),
            }
        )
    return {
        **counted_json(counted),
        "layout": {"text": str(counted.spec.visits), "visits": list(counted.spec.visits.visits)},
        "convention": convention_json(book.convention, book.context),
        "active": active_counts(counted.spec).as_json(),
        "passes_drawn": None if sampled is None else sampled.as_json(),
        "imported": None if imported is None else imported_json(imported),
        "ledger": rows,
    }


def convention_rows(counted: list[Counted]) -> list[dict[str, Any]]:
    """One model under several conventions."""
    yes = {True: "yes", False: "no"}
    rows = []
    for item in counted:
        row, V = item.ledger.convention, item.spec.vocab_size
        unknown = "unknown vocabulary"
        rows.append(
            {
                "convention": row.name, "attended_tokens": short_fraction(item.ledger.attended),
                **item.budget.as_json(), "router": yes[row.router], "norms": yes[row.norms],
                "input_embedding": yes[row.input_embedding] if V or not row.input_embedding else unknown,
                "head": yes[row.head] if V or not row.head else unknown,
                "attention": row.attention, "window": row.window, "source": row.source,
            }
        )  # fmt: skip
    return rows


def layout_row(row: LayoutFloor) -> dict[str, Any]:
    """One line of the layouts advisor."""
    return {
        "layout": row.layout.text, "num_layers": row.layout.num_layers, "span": row.span, "count": row.count,
        "executed_layers": len(row.layout.visits), "kv_uniform": row.uniform, "kv_width": row.width,
        "head_dim": row.head_dim, "kv_split": row.split if row.split is not None else row.split_reason,
        "visits": row.layout.canonical,
    }  # fmt: skip
