"""The ledger: component × visits × formula, in five columns whose rows add up exactly to the totals.

    train FLOPs per token = 6·Σ_visits (matmul parameters executed) + Σ_visits 12·n_q·d·c
    KV elements per token = Σ_slots 2·n_kv·d, one slot for each visit

Source: arXiv 2609.01343v3, Sec. 3.2 and Appendix A. What each component costs stands in `components`; here blocks are
grouped, multiplied by their visits, and added up, on integers or on the solver's integer arrays alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from smelt_match.budget.components import (
    BLOCK_COMPONENTS,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    HEAD_BIAS,
    PLAIN,
    TIED_HEAD,
    Component,
    Dims,
    Form,
    Int,
    form_of,
    kv_elements,
    kv_text,
    score_flops,
    score_text,
)
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.spec.layout import Layout, block_names, parse_layers
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.parts import Extra
from smelt_match.units import round_half_even


@dataclass(frozen=True)
class Group:
    """Blocks that share their dimensions and their number of visits."""

    blocks: tuple[int, ...]
    visits: int
    dims: Dims


@dataclass(frozen=True)
class Ends:
    """What a model has besides its blocks, and how far its backward pass goes.

    Attributes:
        head_rows: Rows of the output head, where they differ from the embedding's.
        backward: Visits of each block that the backward pass goes through, or None for all.
    """

    tied: bool = False
    final_norm: bool = True
    extras: tuple[Extra, ...] = ()
    head_bias: bool = False
    head_rows: int | None = None
    backward: int | None = None

    def trained(self, visits: int) -> int:
        """How many of a block's visits the backward pass goes through."""
        return visits if self.backward is None else min(visits, self.backward)

    def place(self, where: str, visits: int) -> str:
        """Where a row is, and how much of it the backward pass leaves out."""
        trained = self.trained(visits)
        return where if trained == visits else f"{where}, backward through {trained} of {visits}"


@dataclass(frozen=True)
class Row:
    """A ledger row. All counts are totals over the row's blocks and visits.

    Attributes:
        stored: Parameters held in memory and checkpoints.
        active: Parameters that one traversal of the stack uses (each block once, k experts).
        executed: Parameters that a token passes through, every visit counted.
        matmul: Training FLOPs per token of the executed matmuls: 6 for each billed parameter.
        scores: Training FLOPs per token and attended token, at every visit.
        kv: KV-cache elements per token.
        window: The sliding window that limits the attended tokens of ``scores``, or None.
    """

    component: str
    where: str
    visits: int
    formula: str
    dims: Dims
    stored: Int = 0
    active: Int = 0
    executed: Int = 0
    matmul: Int = 0
    scores: Int = 0
    kv: Int = 0
    window: int | None = None

    def written(self, numbers: bool) -> str:
        """The formula, in symbols or with this row's numbers."""
        form = self.dims.form
        values = {name: getattr(self.dims, name) for name in ("H", "E", "k", "I", "n_q", "n_kv", "d", "V")}
        values |= {"F": form.F, "S": form.S, "d_v": form.d_v}
        return self.formula.format(**{name: value if numbers else name for name, value in values.items()})


def model_rows(groups: list[Group], convention: Convention, ends: Ends = Ends()) -> list[Row]:
    """The ledger rows of a model given as groups of equal blocks; works on integers and on integer arrays."""
    rows = []
    for group in groups:
        blocks, m, visits = len(group.blocks), group.dims, group.visits
        trained = ends.trained(visits)
        where = ends.place(f"layers {block_names(group.blocks)}", visits)
        rows += [
            _row(part, where, blocks, visits, m, convention, trained) for part in BLOCK_COMPONENTS if part.present(m)
        ]
        executions = blocks * visits
        scores = executions * score_flops(m) if convention.attention != "none" else 0
        if trained != visits:  # a third of the cost is forward, two thirds backward
            scores = scores // visits * (visits + 2 * trained) // 3
        window = m.form.window
        name = "attention scores" if window is None else f"attention scores, window {window:,}"
        rows.append(Row(name, where, visits, score_text(m), m, scores=scores, window=window))
        rows.append(Row("KV cache", where, visits, kv_text(m), m, kv=executions * kv_elements(m)))
    m = groups[0].dims
    once: list[Component] = [FINAL_NORM] if ends.final_norm else []
    if m.V and convention.input_embedding:
        once.insert(0, EMBEDDING)
    rows += [_row(part, "once", 1, 1, m, convention) for part in once]
    if m.V and convention.head:
        head = replace(m, V=ends.head_rows or m.V)
        parts = [TIED_HEAD if ends.tied and convention.input_embedding else HEAD]
        parts += [HEAD_BIAS] if ends.head_bias else []
        rows += [_row(part, "once", 1, 1, head, convention) for part in parts]
    return rows + [row for extra in ends.extras for row in _extra_rows(extra, groups, m, convention, ends)]


def _row(
    part: Component, where: str, blocks: int, visits: int, m: Dims, convention: Convention, trained: int | None = None
) -> Row:
    active = blocks * part.active(m)
    executed = visits * active
    return Row(
        part.name, where, visits, part.formula(m), m,
        stored=blocks * part.stored(m), active=active, executed=executed,
        matmul=_train_flops(active, visits, trained) if part.billed(convention) else 0 * executed,
    )  # fmt: skip


def _train_flops(active: Int, visits: int, trained: int | None = None) -> Int:
    """2 FLOPs for each parameter and visit forward, 4 for each visit that the backward pass goes through."""
    return (2 * visits + 4 * (visits if trained is None else trained)) * active


def _extra_rows(extra: Extra, groups: list[Group], m: Dims, convention: Convention, ends: Ends) -> list[Row]:
    """The rows of weights that a spec prices itself, one for each number of visits."""
    places: dict[tuple[str, int, int], int] = {}
    if extra.layers is None:
        places["once", extra.executions, extra.executions] = 1
    else:
        depth = max(block for group in groups for block in group.blocks) + 1
        layers = set(parse_layers(extra.layers, depth))
        for group in groups:
            inside = tuple(block for block in group.blocks if block in layers)
            if inside:
                where = ends.place(f"layers {block_names(inside)}", group.visits)
                runs, trained = (extra.executions * n for n in (group.visits, ends.trained(group.visits)))
                places[where, runs, trained] = len(inside)
    billed = extra.cost == "matmul" or (extra.cost == "gain" and convention.norms)
    rows = []
    for (where, runs, trained), blocks in places.items():
        active = 0 if extra.cost == "lookup" else blocks * extra.params
        executed = runs * active
        text = extra.formula.replace("{", "{{").replace("}", "}}") or str(extra.params)
        rows.append(
            Row(extra.name, where, runs, text, m, stored=blocks * extra.params, active=active, executed=executed,
                matmul=_train_flops(active, runs, trained) if billed else 0)
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class Totals:
    """Column sums of a ledger, on integers or arrays.

    FLOPs = matmul + scores·(attended tokens) + Σ over windows of windowed[W]·(attended tokens within W).
    """

    stored: Int
    active: Int
    executed: Int
    matmul: Int
    scores: Int
    kv: Int
    windowed: Mapping[int, Int] = field(default_factory=dict)


def totals(rows: list[Row]) -> Totals:
    """Add the rows up."""
    columns = ("stored", "active", "executed", "matmul", "kv")
    sums = {name: sum(getattr(row, name) for row in rows) for name in columns}
    windows = sorted({row.window for row in rows if row.window is not None})
    return Totals(
        **sums,
        scores=sum(row.scores for row in rows if row.window is None),
        windowed={window: sum(row.scores for row in rows if row.window == window) for window in windows},
    )


def groups_of(layout: Layout, outer: Dims, inner: Dims, forms: Mapping[int, Form] | None = None) -> list[Group]:
    """Blocks that share visit count and form, in order of first block.

    Args:
        layout: Which block runs when.
        outer: Dimensions of blocks that are visited once.
        inner: Dimensions of looped blocks.
        forms: The form of each block, where it is not plain.
    """
    found: dict[tuple[int, Form], list[int]] = {}
    for block, visits in enumerate(layout.counts):
        found.setdefault((visits, PLAIN if forms is None else forms[block]), []).append(block)
    return [
        Group(tuple(blocks), visits, replace(outer if visits == 1 else inner, form=form))
        for (visits, form), blocks in found.items()
    ]


def spec_groups(spec: ModelSpec) -> list[Group]:
    """The groups of a spec."""
    loop_q, loop_kv = spec.loop_heads

    def dims(n_q: int, n_kv: int) -> Dims:
        return Dims(
            spec.hidden_size, spec.num_experts, spec.experts_per_token, spec.expert_intermediate_size,
            n_q, n_kv, spec.head_dim, spec.vocab_size or 0,
        )  # fmt: skip

    outer, inner = dims(spec.num_attention_heads, spec.num_key_value_heads), dims(loop_q, loop_kv)
    return groups_of(spec.visits, outer, inner, {block: form_of(spec, block) for block in range(spec.num_layers)})


def spec_ends(spec: ModelSpec) -> Ends:
    """What a spec has besides its blocks."""
    return Ends(
        spec.tie_word_embeddings, spec.final_norm, tuple(spec.extras), spec.output_head_bias, spec.head_vocab_size,
        spec.backward_visits,
    )  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """The budgets of a model under one convention and context, per token, exactly.

    Attributes:
        flops: Training FLOPs per token, an exact rational.
        attention: The part of ``flops`` that attention scores cost.
        params: Stored parameters.
        active: Parameters of one traversal.
        kv: KV-cache elements per token.
    """

    flops: Fraction
    attention: Fraction
    params: int
    active: int
    kv: int

    def as_json(self) -> dict[str, int]:
        """Integers under names that carry their unit; rationals are rounded half to even."""
        return {
            "flops_train_per_token": round_half_even(self.flops),
            "flops_attention_train_per_token": round_half_even(self.attention),
            "params_total": self.params,
            "params_active": self.active,
            "kv_elements_per_token": self.kv,
        }


@dataclass(frozen=True)
class Ledger:
    """All rows of one model under one convention and context."""

    spec: ModelSpec
    convention: Convention
    context: Context
    rows: list[Row]

    @property
    def attended(self) -> Fraction:
        """Attended tokens billed to each token of a layer without a window of its own."""
        return self.convention.attended(self.context)

    def attended_of(self, row: Row) -> Fraction:
        """Attended tokens billed to each token of a row's layers."""
        return self.attended if row.window is None else self._within(row.window)

    def _within(self, window: int) -> Fraction:
        exact = self.convention.window == "exact"
        context = self.context.within(window) if exact else replace(self.context, window=window)
        return self.convention.attended(context)

    def flops(self, row: Row) -> Fraction:
        """Training FLOPs per token of a row."""
        return Fraction(int(row.matmul)) + (int(row.scores) * self.attended_of(row) if row.scores else 0)

    @property
    def totals(self) -> Totals:
        """Exact column sums."""
        return totals(self.rows)

    @property
    def budget(self) -> Budget:
        """The totals as budgets."""
        sums = self.totals
        attention = sums.scores * self.attended
        attention += sum(scores * self._within(window) for window, scores in sums.windowed.items() if scores)
        return Budget(sums.matmul + attention, attention, sums.stored, sums.active, sums.kv)


def ledger(spec: ModelSpec, convention: Convention, context: Context) -> Ledger:
    """Count a spec: every component of every group of blocks."""
    return Ledger(spec, convention, context, model_rows(spec_groups(spec), convention, spec_ends(spec)))
