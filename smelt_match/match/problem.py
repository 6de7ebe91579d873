"""A matching problem: what is asked, the points that may answer it, and the integer targets they are measured by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from smelt_match.budget.components import Dims, Form, form_of
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.ledger import Budget, Totals, groups_of, ledger, model_rows, spec_ends, totals
from smelt_match.budget.tolerance import BUDGETS, Tolerance
from smelt_match.errors import BadInput
from smelt_match.match.grid import AXES, Grid
from smelt_match.match.rules import Rule, rules_for
from smelt_match.spec.layout import Layout
from smelt_match.spec.model import ABOUT, ModelSpec

Policy = Literal["uniform", "split"]
Heads = Literal["kept", "q-width", "free", "free-kv"]
POINT_AXES = AXES  # a point lists its sizes in this order
MAX_GEOMETRIES = 2_000_000
HEADS_IN_WORDS = {
    "kept": "query and KV heads kept",
    "q-width": "KV heads kept, query width in proportion to H",
    "free": "KV heads kept, query heads free",
    "free-kv": "query and KV heads free",
}


@dataclass(frozen=True)
class Question:
    """Everything a user asks of the solver.

    Attributes:
        baseline: The model to match.
        layout: The loop of the answer; its depth may differ from the baseline's.
        heads: Which head counts may change (`HEADS_IN_WORDS`).
        match: Budgets to match; contains flops or params.
        one_sided: Whether every deviation must be at most 0.
        fixed: Dimensions pinned to a value.
        tolerance: Bounds that an answer must meet, or None.
        reading: How the baseline was read, where it is not as its source has it.
    """

    baseline: ModelSpec
    layout: Layout
    convention: Convention
    context: Context
    grid: Grid
    heads: Heads = "kept"
    match: tuple[str, ...] = BUDGETS
    one_sided: bool = False
    fixed: Mapping[str, int] = field(default_factory=dict)
    tolerance: Tolerance | None = None
    reading: str = ""

    def __post_init__(self) -> None:
        known, given = set(BUDGETS), ",".join(self.match)[:60]
        if not set(self.match) <= known or len(set(self.match)) < len(self.match):
            raise BadInput(f"--match {given!r}: budgets are flops, params and kv, each once")
        if not {"flops", "params"} & set(self.match):
            raise BadInput(f"--match {given!r}: at least flops or params must be matched")

    @property
    def is_identity(self) -> bool:
        """Whether the baseline itself answers: its own layout, with nothing pinned to another value."""
        config = self.baseline.config()
        agrees = all(config[name] == value for name, value in self.fixed.items())
        return agrees and self.layout.visits == self.baseline.visits.visits


@dataclass(frozen=True)
class Points:
    """Candidate configurations as integer arrays of one length: H, E, I, d, n_q, n_kv."""

    H: Any
    E: Any
    I: Any
    d: Any
    n_q: Any
    n_kv: Any

    def __len__(self) -> int:
        return len(self.H)

    def take(self, index: Any) -> Points:
        """The points at some positions."""
        return Points(*(np.asarray(getattr(self, name))[index] for name in self.__dataclass_fields__))

    def row(self, index: int) -> tuple[int, ...]:
        """One point as Python integers, in field order."""
        return tuple(int(getattr(self, name)[index]) for name in self.__dataclass_fields__)

    @staticmethod
    def join(parts: list[Points]) -> Points:
        """The points of several arrays, one after the other."""
        return Points(*(np.concatenate([getattr(p, name) for p in parts]) for name in Points.__dataclass_fields__))

    @staticmethod
    def of(*rows: tuple[int, ...]) -> Points:
        """Points from tuples in field order."""
        columns = np.array(rows, dtype=object).T if rows else np.empty((6, 0), dtype=np.int64)
        return Points(*columns)


def forms_of(question: Question) -> dict[int, Form]:
    """The form of every block of the answer: the baseline's, which the solver holds fixed.

    Raises:
        BadInput: The baseline has a part that the solver cannot hold fixed while the sizes change.
    """
    base, layout = question.baseline, question.layout
    check_parts(base)
    if not base.num_experts:
        raise BadInput(
            f"{base.name}: a dense model has no experts to take up the parameters that narrowing frees",
            "--experts-per-token K reads its feed-forward as K experts of a K-th of the width, and makes it an MoE",
        )
    if base.dense & set(layout.loop):
        first = min(base.dense & set(layout.loop)) + 1
        raise BadInput(f"layout {layout}: layer {first} is dense; only layers with experts can be looped")
    if max(base.dense, default=-1) >= layout.num_layers:
        raise BadInput(f"layout {layout}: has fewer layers than the baseline has dense ones")
    if layout.num_layers != base.num_layers and sorted(base.dense) != list(range(len(base.dense))):
        raise BadInput(f"{base.name}: its dense layers are not the first ones, so that the depth cannot change")
    plain = form_of(base, next(block for block in range(base.num_layers) if block not in base.dense))
    return {block: form_of(base, block) if block in base.dense else plain for block in range(layout.num_layers)}


def check_parts(base: ModelSpec) -> None:
    """Refuse a baseline with a part that the solver cannot hold fixed, dense or not.

    Raises:
        BadInput: It names the part.
    """
    refused = {
        "latent attention (MLA)": base.latent_attention is not None,
        "sliding windows": base.sliding_window is not None,
        "value heads of another size": base.value_head_dim not in (None, base.head_dim),
        "tables of value embeddings": base.value_embedding_layers is not None,
        "attributes of its loop": base.loop is not None,
        f"parts of its own ({', '.join(extra.name for extra in base.extras)})": bool(base.extras),
    }
    for part, present in refused.items():
        if present:
            raise BadInput(f"{base.name}: has {part}, which can be counted but not solved for yet")


def split_ways(question: Question) -> tuple[int, str]:
    """(r, "") if the `split` head policy exists for a question, else (0, the reason why not).

    Under `split` the looped blocks have the baseline's heads divided by r, so that Σ visits of n_q·d and of n_kv·d
    equals the baseline's.
    """
    baseline, layout = question.baseline, question.layout
    counts = sorted({count for count in layout.counts if count > 1})
    if not baseline.visits.is_unlooped:
        return 0, "the baseline is itself looped"
    if layout.num_layers != baseline.num_layers:
        return 0, f"the depth is {layout.num_layers}, the baseline's {baseline.num_layers}"
    if len(counts) != 1:
        return 0, "the layout repeats nothing" if not counts else "more than one group is repeated"
    loop = layout.loop
    if loop != tuple(range(loop[0], loop[-1] + 1)):
        return 0, "more than one group is repeated"
    r = counts[0]
    for heads, name in ((baseline.num_attention_heads, "query"), (baseline.num_key_value_heads, "KV")):
        if heads % r:
            return 0, f"{r} visits do not divide the {heads} {name} heads"
    for name, value in (
        ("head_dim", baseline.head_dim),
        ("num_attention_heads", baseline.num_attention_heads),
        ("num_key_value_heads", baseline.num_key_value_heads),
    ):
        if question.fixed.get(name, value) != value:
            return 0, f"{name} is pinned to {question.fixed[name]}, the baseline's is {value}"
    return r, ""


class Problem:
    """A question under one head policy, with its axes, geometries, integer targets and exact evaluations.

    FLOPs are scaled by the denominator of the attended tokens, so that every target is an integer.
    """

    def __init__(self, question: Question, policy: Policy) -> None:
        self.question, self.policy = question, policy
        self.forms = forms_of(question)
        self.ways = 1
        if policy == "split":
            self.ways, reason = split_ways(question)
            if not self.ways:
                raise BadInput(f"split heads are unavailable: {reason}")
        base = question.baseline
        if question.is_identity and policy == "uniform":
            config = base.config()
            self.axes: dict[str, tuple[int, ...]] = {name: (config[name],) for name in POINT_AXES}
            self.envelope: Fraction | None = None
        else:
            self.axes = question.grid.axes(base, self._pinned())
            self.envelope = question.grid.factor
        self.attended = question.convention.attended(question.context)
        self.rules: tuple[Rule, ...] = rules_for(question.grid.precision)
        self.baseline_budget: Budget = ledger(base, question.convention, question.context).budget
        scale = self.attended.denominator
        self.targets = {
            "flops": int(self.baseline_budget.flops * scale),
            "params": self.baseline_budget.params,
            "kv": self.baseline_budget.kv,
            "attention": int(self.baseline_budget.attention * scale),
        }

    def _pinned(self) -> dict[str, int]:
        base, heads = self.question.baseline, self.question.heads
        pinned = dict(self.question.fixed)
        if self.policy == "split":
            pinned.setdefault("head_dim", base.head_dim)
        if heads != "free-kv" or self.policy == "split":
            pinned.setdefault("num_key_value_heads", base.num_key_value_heads)
        if heads == "kept" or self.policy == "split":
            pinned.setdefault("num_attention_heads", base.num_attention_heads)
        return pinned

    @cached_property
    def geometries(self) -> list[tuple[int, int, int]]:
        """Every (d, n_q, n_kv) of the grid with n_kv dividing n_q."""
        sizes = [len(self.axes[name]) for name in ("head_dim", "num_key_value_heads", "num_attention_heads")]
        if math.prod(sizes) > MAX_GEOMETRIES:
            raise BadInput(
                f"grid {self.question.grid.name!r}: more than {MAX_GEOMETRIES:,} head geometries",
                "raise the step of head_dim or of the head counts",
            )
        found = [
            (d, n_q, n_kv)
            for d in self.axes["head_dim"]
            for n_kv in self.axes["num_key_value_heads"]
            for n_q in self.axes["num_attention_heads"]
            if n_q % n_kv == 0
        ]
        if not found:
            raise BadInput(
                f"grid {self.question.grid.name!r}: no point: no query head count is divisible by a KV head count"
            )
        return found

    def totals(self, points: Points) -> Totals:
        """The ledger's column sums at every point."""
        base = self.question.baseline
        V = base.vocab_size or 0
        k = base.experts_per_token
        outer = Dims(points.H, points.E, k, points.I, points.n_q, points.n_kv, points.d, V)
        inner = replace(outer, n_q=points.n_q // self.ways, n_kv=points.n_kv // self.ways)
        groups = groups_of(self.question.layout, outer, inner, self.forms)
        return totals(model_rows(groups, self.question.convention, spec_ends(base)))

    def values(self, points: Points) -> dict[str, Any]:
        """Budgets at every point, on the scale of `targets`."""
        sums = self.totals(points)
        attention = sums.scores * self.attended.numerator
        return {
            "flops": sums.matmul * self.attended.denominator + attention,
            "params": sums.stored + 0 * points.H,
            "kv": sums.kv + 0 * points.H,
            "attention": attention + 0 * points.H,
        }

    @cached_property
    def kv_slots(self) -> int:
        """KV elements per token and unit of n_kv·d: 2 for each visit, with split heads counted as they are."""
        return int(self.totals(Points.of((2, 2, 2, 1, self.ways, self.ways))).kv[0]) // self.ways

    def relative(self, budget: str, value: int) -> Fraction:
        """The signed deviation of a value from a target."""
        target = self.targets[budget]
        return Fraction(value - target, target) if target else Fraction(0)

    def spec_at(self, point: tuple[int, ...], name: str) -> ModelSpec:
        """The model at a point."""
        H, E, I, d, n_q, n_kv = point
        base, layout = self.question.baseline, self.question.layout
        fields = base.model_dump(exclude_unset=True, exclude=set(ABOUT))
        fields |= {
            "name": name, "matches": base.name, "hidden_size": H, "num_layers": layout.num_layers, "num_experts": E,
            "expert_intermediate_size": I, "num_attention_heads": n_q, "num_key_value_heads": n_kv, "head_dim": d,
            "layout": layout.canonical,
        }  # fmt: skip
        if self.ways > 1:
            fields |= {
                "loop_num_attention_heads": n_q // self.ways,
                "loop_num_key_value_heads": n_kv // self.ways,
            }
        return ModelSpec.model_validate(fields)
