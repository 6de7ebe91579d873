"""The ledger: component × visits × formula, in five columns whose rows add up exactly to the totals.

    train FLOPs per token = 6·Σ_visits (matmul parameters executed) + Σ_visits 12·n_q·d·c
    KV elements per token = Σ_slots 2·n_kv·d, one slot for each visit, or as the loop's cache policy says

Source: arXiv 2609.01343v3, Sec. 3.2 and Appendix A. What each component costs stands in `components`; here blocks are
grouped, multiplied by their visits, and added up, on integers or on the solver's integer arrays alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from smelt_match.budget.components import (
    ATTENTION_HALF,
    BLOCK_COMPONENTS,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    HEAD_BIAS,
    KEYS_AND_VALUES,
    NORMS,
    PLAIN,
    QUERIES,
    SCORES,
    TIED_HEAD,
    UNTIED,
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
from smelt_match.budget.parts import Part, parts_of
from smelt_match.spec.layout import Layout, block_names
from smelt_match.spec.loop import Loop
from smelt_match.spec.model import ModelSpec
from smelt_match.units import round_half_even


@dataclass(frozen=True)
class Group:
    """Blocks that share their dimensions and their number of visits."""

    blocks: tuple[int, ...]
    visits: int
    dims: Dims


PLAIN_LOOP = Loop()


@dataclass(frozen=True)
class Ends:
    """What a model has besides its blocks, how it runs its loop, and how far its backward pass goes.

    Attributes:
        parts: Weights beside the components.
        head_rows: Rows of the output head, where they differ from the embedding's.
        backward: Visits of each block that the backward pass goes through, or None for all.
        loop: What the layout does not say about the loop.
    """

    tied: bool = False
    final_norm: bool = True
    parts: tuple[Part, ...] = ()
    head_bias: bool = False
    head_rows: int | None = None
    backward: int | None = None
    loop: Loop = field(default=PLAIN_LOOP)

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
        layers = f"layers {block_names(group.blocks)}"
        rows += [
            _row(part, ends.place(layers, runs), blocks, runs, dims, convention, ends.trained(runs), copies)
            for part, dims, runs, copies in _visited(m, visits, ends.loop)
        ]
        attended = 1 if ends.loop.part == "feed_forward" else visits
        trained, where = ends.trained(attended), ends.place(layers, attended)
        scores = blocks * attended * score_flops(m) if convention.attention != "none" else 0
        if trained != attended:  # a third of the cost is forward, two thirds backward
            scores = scores // attended * (attended + 2 * trained) // 3
        window = m.form.window
        name = SCORES if window is None else f"{SCORES}, window {window:,}"
        rows.append(Row(name, where, attended, score_text(m), m, scores=scores, window=window))
        slots = ends.loop.slots(attended)
        kept = where if slots == attended else f"{layers}, {slots} of {attended} visits kept"
        rows.append(Row("KV cache", kept, slots, kv_text(m), m, kv=blocks * slots * kv_elements(m)))
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
    return rows + [row for part in ends.parts for row in _part_rows(part, groups, m, convention, ends)]


def _visited(m: Dims, visits: int, loop: Loop) -> Iterator[tuple[Component, Dims, int, int]]:
    """The components of a block, each with its dimensions, how often it runs, and how many copies are stored."""
    untied = frozenset[str]().union(*(UNTIED[name] for name in loop.untied))
    for part in BLOCK_COMPONENTS:
        if not part.present(m):
            continue
        if visits > 1 and loop.part != "block" and part.name == NORMS:
            half = replace(m, form=replace(m.form, norms=m.form.norms // 2))
            yield from ((part, half, runs, 1) for runs in (visits, 1))
        elif visits > 1 and loop.kv_policy == "shared" and part.name == BLOCK_COMPONENTS[0].name:
            runs = 1 if loop.part == "feed_forward" else visits
            yield from ((QUERIES, m, runs, 1), (KEYS_AND_VALUES, m, 1, 1))
        else:
            other = "feed_forward" if part.name in ATTENTION_HALF else "attention"
            yield part, m, 1 if loop.part == other else visits, visits if part.name in untied else 1


def _row(
    part: Component, where: str, blocks: int, visits: int, m: Dims, convention: Convention, trained: int | None = None,
    copies: int = 1,
) -> Row:  # fmt: skip
    active = blocks * part.active(m)
    executed = visits * active
    return Row(
        part.name, where, visits, part.formula(m), m,
        stored=blocks * copies * part.stored(m), active=active, executed=executed,
        matmul=_train_flops(active, visits, trained) if part.billed(convention) else 0 * executed,
    )  # fmt: skip


def _train_flops(active: Int, visits: int, trained: int | None = None) -> Int:
    """2 FLOPs for each parameter and visit forward, 4 for each visit that the backward pass goes through."""
    return (2 * visits + 4 * (visits if trained is None else trained)) * active


def _part_rows(part: Part, groups: list[Group], m: Dims, convention: Convention, ends: Ends) -> Iterator[Row]:
    """The rows of weights beside the components, one for each number of visits."""
    if part.embedding and not convention.input_embedding:
        return
    places: dict[tuple[str, int, int, int], int] = {}  # blocks by (where, runs, trained runs, copies)
    if part.blocks is None:
        places["once", part.executions, part.executions, 1] = 1
    else:
        for group in groups:
            inside = tuple(block for block in group.blocks if block in part.blocks)
            if inside:
                where = ends.place(f"layers {block_names(inside)}", group.visits)
                visits = max(0, group.visits - part.skipped)
                runs, trained = (part.executions * n for n in (visits, min(visits, ends.trained(group.visits))))
                places[where, runs, trained, group.visits if part.copies else 1] = len(inside)
    billed = part.cost == "matmul" or (part.cost == "gain" and convention.norms)
    text = part.formula.replace("{", "{{").replace("}", "}}") or str(part.params)
    for (where, runs, trained, copies), blocks in places.items():
        active = 0 if part.cost == "lookup" else blocks * part.params
        yield Row(
            part.name, where, runs, text, m, stored=blocks * copies * part.params, active=active,
            executed=runs * active, matmul=_train_flops(active, runs, trained) if billed else 0,
        )  # fmt: skip


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
        spec.tie_word_embeddings, spec.final_norm, parts_of(spec), spec.output_head_bias, spec.head_vocab_size,
        spec.backward_visits, spec.loop or PLAIN_LOOP,
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
