"""The ledger: component × visits × formula, in five columns whose rows add up exactly to the totals.

The formulas below are the only place where a model's costs are written down for counting and for solving; the
dimensions may be Python integers or NumPy integer arrays (the solver's grids), and the same bodies serve both.

    attention  2·H·d·(n_q + n_kv)      router  H·E      experts  3·H·I each      norms  2·H, and one final H
    train FLOPs per token = 6·Σ_visits (matmul parameters executed) + 12·Σ_visits n_q·d·c
    KV elements per token = Σ_slots 2·n_kv·d, one slot for each visit

Source: arXiv 2609.01343v3, Sec. 3.2 and Appendix A; the geometry behind the printed digits in specs/smelt.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.spec.layout import Layout, block_names
from smelt_match.spec.model import ModelSpec
from smelt_match.units import round_half_even

if TYPE_CHECKING:
    Int: TypeAlias = Any  # int, or an integer array of the solver's grid


@dataclass(frozen=True)
class Dims:
    """The dimensions of one block: H, E, k, I, n_q, n_kv, d, and V for the model-level parts."""

    H: Int
    E: Int
    k: Int
    I: Int
    n_q: Int
    n_kv: Int
    d: Int
    V: int = 0


@dataclass(frozen=True)
class Group:
    """Blocks that share their dimensions and their number of visits."""

    blocks: tuple[int, ...]
    visits: int
    dims: Dims


@dataclass(frozen=True)
class Component:
    """One row kind: parameters stored, those one traversal uses, and the convention flag that bills them."""

    name: str
    formula: str
    stored: Callable[[Dims], Int]
    active: Callable[[Dims], Int]
    billed: Callable[[Convention], bool]


BLOCK_COMPONENTS = (
    Component(
        "attention projections", "2·{H}·{d}·({n_q} + {n_kv})",
        lambda m: 2 * m.H * m.d * (m.n_q + m.n_kv), lambda m: 2 * m.H * m.d * (m.n_q + m.n_kv), lambda _: True,
    ),
    Component("router", "{H}·{E}", lambda m: m.H * m.E, lambda m: m.H * m.E, lambda c: c.router),
    Component(
        "experts", "3·{H}·{I} each, {k} of {E}",
        lambda m: 3 * m.H * m.I * m.E, lambda m: 3 * m.H * m.I * m.k, lambda _: True,
    ),
    Component("norms", "2·{H}", lambda m: 2 * m.H, lambda m: 2 * m.H, lambda c: c.norms),
)  # fmt: skip
FINAL_NORM = Component("final norm", "{H}", lambda m: m.H, lambda m: m.H, lambda c: c.norms)
HEAD = Component("output head", "{V}·{H}", lambda m: m.V * m.H, lambda m: m.V * m.H, lambda _: True)
TIED_HEAD = Component("output head", "{V}·{H}, tied", lambda _: 0, lambda m: m.V * m.H, lambda _: True)
EMBEDDING = Component("input embedding", "{V}·{H}", lambda m: m.V * m.H, lambda _: 0, lambda _: False)


@dataclass(frozen=True)
class Row:
    """A ledger row. All counts are totals over the row's blocks and visits.

    Attributes:
        stored: Parameters held in memory and checkpoints.
        active: Parameters that one traversal of the stack uses (each block once, k experts).
        executed: Parameters that a token passes through, every visit counted.
        matmul: Training FLOPs per token of the executed matmuls: 6 for each billed parameter.
        scores: Training FLOPs per token and attended token: 12·n_q·d for each visit.
        kv: KV-cache elements per token.
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

    def written(self, numbers: bool) -> str:
        """The formula, in symbols or with this row's numbers."""
        names = Dims.__dataclass_fields__
        return self.formula.format(**{name: getattr(self.dims, name) if numbers else name for name in names})


def model_rows(groups: list[Group], convention: Convention, tied: bool = False) -> list[Row]:
    """The ledger rows of a model given as groups of equal blocks; works on integers and on integer arrays."""
    rows = []
    for group in groups:
        blocks, m = len(group.blocks), group.dims
        where = f"layers {block_names(group.blocks)}"
        rows += [_row(part, where, blocks, group.visits, m, convention) for part in BLOCK_COMPONENTS]
        executions = blocks * group.visits
        scores = 12 * executions * m.n_q * m.d if convention.attention != "none" else 0
        rows.append(Row("attention scores", where, group.visits, "12·{n_q}·{d}·c", m, scores=scores))
        rows.append(Row("KV cache", where, group.visits, "2·{n_kv}·{d}", m, kv=2 * executions * m.n_kv * m.d))
    m = groups[0].dims
    ends = [FINAL_NORM]
    if m.V and convention.input_embedding:
        ends.insert(0, EMBEDDING)
    if m.V and convention.head:
        ends.append(TIED_HEAD if tied and convention.input_embedding else HEAD)
    return rows + [_row(part, "once", 1, 1, m, convention) for part in ends]


def _row(part: Component, where: str, blocks: int, visits: int, m: Dims, convention: Convention) -> Row:
    active = blocks * part.active(m)
    executed = visits * active
    return Row(
        part.name, where, visits, part.formula, m,
        stored=blocks * part.stored(m), active=active, executed=executed,
        matmul=6 * executed if part.billed(convention) else 0 * executed,
    )  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """Column sums of a ledger, on integers or arrays. FLOPs = matmul + scores·(attended tokens)."""

    stored: Int
    active: Int
    executed: Int
    matmul: Int
    scores: Int
    kv: Int


def totals(rows: list[Row]) -> Totals:
    """Add the rows up."""
    return Totals(*(sum(getattr(row, name) for row in rows) for name in Totals.__dataclass_fields__))


def groups_of(layout: Layout, outer: Dims, inner: Dims) -> list[Group]:
    """Blocks by visit count; blocks visited once have the dimensions ``outer``, looped ones ``inner``."""
    return [Group(blocks, visits, outer if visits == 1 else inner) for blocks, visits in layout.groups()]


def spec_groups(spec: ModelSpec) -> list[Group]:
    """The groups of a spec."""
    loop_q, loop_kv = spec.loop_heads

    def dims(n_q: int, n_kv: int) -> Dims:
        return Dims(
            spec.hidden_size, spec.num_experts, spec.experts_per_token, spec.expert_intermediate_size,
            n_q, n_kv, spec.head_dim, spec.vocab_size or 0,
        )  # fmt: skip

    outer, inner = dims(spec.num_attention_heads, spec.num_key_value_heads), dims(loop_q, loop_kv)
    return groups_of(spec.visits, outer, inner)


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
        """Attended tokens billed to each token."""
        return self.convention.attended(self.context)

    def flops(self, row: Row) -> Fraction:
        """Training FLOPs per token of a row."""
        return Fraction(int(row.matmul)) + int(row.scores) * self.attended

    @property
    def totals(self) -> Totals:
        """Exact column sums."""
        return totals(self.rows)

    @property
    def budget(self) -> Budget:
        """The totals as budgets."""
        sums = self.totals
        attention = sums.scores * self.attended
        return Budget(sums.matmul + attention, attention, sums.stored, sums.active, sums.kv)


def ledger(spec: ModelSpec, convention: Convention, context: Context) -> Ledger:
    """Count a spec: every component of every group of blocks."""
    rows = model_rows(spec_groups(spec), convention, spec.tie_word_embeddings)
    return Ledger(spec, convention, context, rows)
