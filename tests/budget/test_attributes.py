"""Attributes of a loop: each changes the rows it should and no other, or is refused by name."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.count import control_of
from smelt_match.budget.ledger import Row, ledger
from smelt_match.budget.passes import drawn, flops_forward, with_passes
from smelt_match.errors import BadInput
from smelt_match.match.grid import find_grid
from smelt_match.match.problem import Problem, Question
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec
from tests.budget.test_ledger import _value, specs

CONTEXT = Context.causal(64)
RULES = [convention(name) for name in sorted(CONVENTIONS)]
H, r = 32, 3


def dense(**fields: Any) -> ModelSpec:
    """Two of four dense layers three times: 1-2-1x3."""
    return ModelSpec.model_validate(
        {
            "name": "small", "hidden_size": H, "num_layers": 4, "num_experts": 0, "experts_per_token": 0,
            "expert_intermediate_size": 0, "dense_layers": "1-4", "dense_intermediate_size": 48, "head_dim": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "layout": "1-2-1x3", **fields,
        }
    )  # fmt: skip


def moe(**fields: Any) -> ModelSpec:
    sizes = {"num_experts": 6, "experts_per_token": 2, "expert_intermediate_size": 24}
    return dense(dense_layers=None, dense_intermediate_size=None, **sizes, **fields)


def rows(spec: ModelSpec, rule: str = "torchtitan") -> dict[tuple[str, str], Row]:
    found = ledger(spec, convention(rule), CONTEXT).rows
    return {(row.component, row.where): row for row in found}


def changes(plain: ModelSpec, other: ModelSpec, rule: str = "torchtitan") -> dict[str, tuple[int, ...]]:
    """(stored, active, executed, matmul, scores, kv) that a component gains, for components that gain anything."""

    def sums(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for row in ledger(spec, convention(rule), CONTEXT).rows:
            mine = (row.stored, row.active, row.executed, row.matmul, row.scores, row.kv)
            old = found.get(row.component, (0,) * 6)
            found[row.component] = tuple(a + b for a, b in zip(old, mine, strict=True))
        return found

    before, after = sums(plain), sums(other)
    zero = (0,) * 6
    gains = {
        name: tuple(b - a for a, b in zip(before.get(name, zero), after.get(name, zero), strict=True))
        for name in before | after
    }
    return {name: gain for name, gain in gains.items() if any(gain)}


def matmul(params: int, runs: int, stored: int | None = None) -> tuple[int, ...]:
    return (params if stored is None else stored, params, params * runs, 6 * params * runs, 0, 0)


ADAPTERS = 4 * (H + 32) * 2 + 4 * (H + 16) * 2 + 3 * 4 * (H + 48)  # q and o, k and v, three of the feed-forward
KV = 2 * 2 * 8


@pytest.mark.parametrize(
    ("loop", "gains"),
    [
        ({"injection": {"kind": "concat"}}, {"injection": matmul(2 * H * H, r)}),
        ({"injection": {"kind": "add"}}, {}),
        ({"injection": {"kind": "diagonal"}}, {"injection gains": matmul(2 * H, r)}),
        (
            {"injection": {"kind": "diagonal", "matrix": True}},
            {"injection gains": matmul(2 * H, r), "injection": matmul(H * H, r)},
        ),
        ({"injection": {"kind": "message", "params": 70}}, {"injection": matmul(2 * 70, r - 1)}),
        ({"norm_after_visit": True}, {"norm after a pass": matmul(H, r)}),
        ({"lora_rank": 4}, {"adapters of a visit": matmul(2 * ADAPTERS, r, stored=2 * ADAPTERS * r)}),
        ({"untied": ["norms"]}, {"norms": (2 * 2 * H * (r - 1), 0, 0, 0, 0, 0)}),
        ({"kv_policy": "visit"}, {}),
        ({"kv_policy": "last"}, {"KV cache": (0, 0, 0, 0, 0, -2 * KV * 2)}),
        ({"kv_policy": "ring", "kv_ring": 2}, {"KV cache": (0, 0, 0, 0, 0, -2 * KV)}),
        ({"residual_scale": "1"}, {}),
        ({"residual_scale": "1/r"}, {}),
        ({"sampled": {"distribution": "Poisson", "most": 9}}, {}),
    ],
)
def test_an_attribute_of_a_loop_changes_its_own_rows_alone(
    loop: dict[str, Any], gains: dict[str, tuple[int, ...]]
) -> None:
    assert changes(dense(), dense(loop=loop)) == gains


def test_an_untied_router_is_stored_for_every_visit() -> None:
    gains = changes(moe(), moe(loop={"untied": ["router"]}))
    assert gains == {"router": (2 * H * 6 * (r - 1), 0, 0, 0, 0, 0)}


def test_shared_keys_and_values_are_projected_once_and_cached_once() -> None:
    gains = changes(dense(), dense(loop={"kv_policy": "shared"}))
    assert gains.pop("KV cache") == (0, 0, 0, 0, 0, -2 * KV * (r - 1))
    stored, active, executed, flops, scores, kv = (sum(column) for column in zip(*gains.values(), strict=True))
    saved = 2 * 2 * H * 8 * 2 * (r - 1)  # two blocks, keys and values, at all visits but the first
    assert (stored, active, executed, flops, scores, kv) == (0, 0, -saved, -6 * saved, 0, 0)


def test_an_adapter_has_at_most_the_rank_of_its_matrix() -> None:
    """Keys and values have 16 columns, queries and outputs 32, the feed-forward 32 by 48."""
    wide = 32 * (H + 32) * 2 + 16 * (H + 16) * 2 + 32 * 3 * (H + 48)
    assert changes(dense(), dense(loop={"lora_rank": 1000}))["adapters of a visit"][1] == 2 * wide


def test_what_enters_a_loop_stands_at_its_first_layer_and_what_ends_a_pass_at_its_last() -> None:
    found = rows(dense(loop={"injection": {"kind": "concat"}, "norm_after_visit": True}))
    assert {("injection", "layers 2"), ("norm after a pass", "layers 3")} <= set(found)


def test_half_a_block_repeated_leaves_the_other_half_at_one_visit() -> None:
    for rule in RULES:
        whole, none = ledger(dense(), rule, CONTEXT), ledger(dense(layout="none"), rule, CONTEXT)
        first, second = (ledger(dense(loop={"part": part}), rule, CONTEXT) for part in ("attention", "feed_forward"))
        assert first.budget.flops + second.budget.flops == whole.budget.flops + none.budget.flops
        assert first.totals.executed + second.totals.executed == whole.totals.executed + none.totals.executed
        assert first.budget.params == second.budget.params == whole.budget.params
        assert (first.budget.attention, first.budget.kv) == (whole.budget.attention, whole.budget.kv)
        assert (second.budget.attention, second.budget.kv) == (none.budget.attention, none.budget.kv)


def test_value_tables_are_embeddings_and_their_gates_are_not() -> None:
    spec = dense(value_embedding_layers="2,4", value_embedding_gate=5)
    table = (2 * 100 * 16, 0, 0, 0, 0, 0)
    gate = (2 * 5 * 2, 2 * 5 * 2, 10 * (r + 1), 60 * (r + 1), 0, 0)
    assert changes(dense(), spec) == {"value embedding": table, "value embedding gate": gate}
    assert changes(dense(), spec, "paper") == {"value embedding gate": gate}
    with_tables, without = (
        active_counts(spec).total,
        active_counts(spec.changed(value_embedding_layers=None, value_embedding_gate=None)).total,
    )
    assert with_tables is not None
    assert without is not None
    assert with_tables - without == 3200 + 20


def test_value_tables_need_no_loop() -> None:
    spec = dense(layout="none", value_embedding_layers="1")
    assert changes(dense(layout="none"), spec) == {"value embedding": (1600, 0, 0, 0, 0, 0)}


def test_a_truncated_backward_pass_reaches_what_a_loop_adds() -> None:
    loop = {"injection": {"kind": "message", "params": 70}, "norm_after_visit": True}
    row = rows(dense(loop=loop, backward_visits=1))["injection", "layers 2-3, backward through 1 of 3"]
    assert row.executed == 2 * 70 * 2
    assert row.matmul == 140 * (2 * 2 + 4 * 1)


looped = specs().filter(lambda spec: not spec.visits.is_unlooped)


@given(looped, st.integers(1, 5), st.sampled_from(RULES))
def test_a_visit_keeps_at_least_as_much_as_a_ring_and_a_ring_as_the_last(spec: ModelSpec, k: int, rule: Any) -> None:
    def kv(**loop: Any) -> int:
        return ledger(spec.changed(loop=loop), rule, CONTEXT).budget.kv

    k = min(k, max(spec.visits.counts))
    visit, ring, last = kv(kv_policy="visit"), kv(kv_policy="ring", kv_ring=k), kv(kv_policy="last")
    assert visit >= ring >= last == kv(kv_policy="shared")
    assert kv(kv_policy="ring", kv_ring=max(spec.visits.counts)) == visit
    assert kv(kv_policy="ring", kv_ring=1) == last
    assert last == ledger(spec.changed(layout="none"), rule, CONTEXT).budget.kv
    assert visit == ledger(spec, rule, CONTEXT).budget.kv


@given(looped, st.sampled_from(RULES))
def test_a_plain_loop_is_the_same_as_none_stated(spec: ModelSpec, rule: Any) -> None:
    assert ledger(spec.changed(loop={}), rule, CONTEXT).rows == ledger(spec, rule, CONTEXT).rows


@given(looped.filter(lambda spec: spec.visits.cycle is not None), st.integers(1, 9), st.sampled_from(RULES))
def test_every_pass_costs_the_same_and_one_pass_is_no_loop(spec: ModelSpec, passes: int, rule: Any) -> None:
    assert with_passes(spec, spec.visits.counts[spec.visits.loop[0]]).visits == spec.visits
    none, one, two, many = (
        ledger(other, rule, CONTEXT).budget
        for other in (spec.changed(layout="none"), *(with_passes(spec, n) for n in (1, 2, passes)))
    )
    assert one == none
    assert many.flops - one.flops == (passes - 1) * (two.flops - one.flops)
    assert many.kv - one.kv == (passes - 1) * (two.kv - one.kv)
    assert many.params == one.params


@given(looped, st.sampled_from(RULES))
def test_a_forward_pass_is_a_third_of_training(spec: ModelSpec, rule: Any) -> None:
    cut = spec.changed(backward_visits=1)
    assert flops_forward(cut, rule, CONTEXT) * 3 == ledger(spec, rule, CONTEXT).budget.flops


def test_a_drawn_number_of_passes_has_a_mean_and_a_worst_case() -> None:
    rule = convention("paper")
    assert drawn(dense(), rule, CONTEXT) is None
    bounded = drawn(dense(loop={"sampled": {"distribution": "uniform on 1 to 5", "most": 5}}), rule, CONTEXT)
    assert bounded is not None
    assert bounded.expected == ledger(dense(), rule, CONTEXT).budget
    assert bounded.worst == ledger(dense(layout="1-2-1x5"), rule, CONTEXT).budget
    unbounded = drawn(dense(loop={"sampled": {"distribution": "Poisson"}}), rule, CONTEXT)
    assert unbounded is not None
    assert unbounded.worst is None


def test_the_control_of_a_loop_has_none_of_its_attributes() -> None:
    control = control_of(dense(loop={"injection": {"kind": "concat"}}))
    assert control.visits.is_unlooped
    assert control.loop is None


@pytest.mark.parametrize("name", [n for n, e in shipped().items() if isinstance(e.spec, ModelSpec) and e.spec.loop])
def test_each_formula_of_a_shipped_loop_is_what_is_counted(name: str) -> None:
    spec = shipped()[name].spec
    assert isinstance(spec, ModelSpec)
    assert all(_value(extra.formula) == extra.params for extra in spec.extras)
    for rule in RULES:
        if rule.head and spec.vocab_size is None:
            continue
        book = ledger(spec, rule, CONTEXT)
        assert sum((book.flops(row) for row in book.rows), Fraction(0)) == book.budget.flops
        for row in book.rows:
            if row.component in ("attention scores", "KV cache", "experts", "expert biases"):
                continue
            each = _value(row.written(numbers=True).removesuffix(", tied"))
            assert (row.stored or row.active) % each == 0, row


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": "none", "loop": {}}, "loop is given, but the layout loops nothing"),
        ({"loop": {"kv_policy": "first"}}, "kv_policy"),
        ({"loop": {"kv_policy": "ring"}}, "kv_ring and kv_policy ring go together"),
        ({"loop": {"kv_ring": 2}}, "kv_ring and kv_policy ring go together"),
        ({"loop": {"hyperconnections": 2}}, "hyperconnections"),
        ({"loop": {"injection": {"kind": "gated"}}}, "kind"),
        ({"loop": {"injection": {"kind": "message"}}}, "params is missing: what a message costs"),
        ({"loop": {"injection": {"kind": "add", "params": 3}}}, "params is given, but the kind add has a price"),
        ({"loop": {"injection": {"kind": "add", "matrix": True}}}, "matrix is given, but the kind is add"),
        ({"loop": {"untied": ["experts"]}}, "untied"),
        ({"loop": {"untied": ["norms", "norms"]}}, "untied names a part twice"),
        ({"loop": {"untied": ["router"]}}, "loop.untied: no looped layer has a router"),
        ({"norms_per_block": 0, "loop": {"untied": ["norms"]}}, "loop.untied: no looped layer has norms"),
        ({"loop": {"kv_policy": "ring", "kv_ring": 9}}, "loop.kv_ring 9 is more than the"),
        ({"backward_visits": 9}, "backward_visits 9 is more than the"),
        ({"value_embedding_layers": "1", "value_embedding_gate": 99999}, "value_embedding_gate 99999 is more channels"),
        ({"layout": "each x2", "loop": {"injection": {"kind": "add"}}}, "loop.injection needs a layout that repeats"),
        ({"layout": "each x2", "loop": {"norm_after_visit": True}}, "loop.norm_after_visit needs a layout"),
        ({"norms_per_block": 3, "loop": {"part": "attention"}}, "3 norms cannot be split"),
        ({"loop": {"part": "attention", "lora_rank": 2}}, "untied parts of half a block"),
        ({"backward_visits": 1, "loop": {"kv_policy": "shared"}}, "with backward_visits it cannot be priced"),
        ({"qk_norm": "head", "loop": {"kv_policy": "shared"}}, "norms and adapters of keys cannot be priced"),
        ({"loop": {"sampled": {"distribution": "x", "most": 2}}}, "loop.sampled.most 2 is less than"),
        ({"value_embedding_gate": 3}, "value_embedding_gate is given without value_embedding_layers"),
        ({"vocab_size": None, "value_embedding_layers": "1"}, "value_embedding_layers is given without vocab_size"),
        ({"value_embedding_layers": "5"}, "value_embedding_layers: layers 5"),
        ({"assumed": {"widht": "a guess"}}, "assumed: 'widht' is not a field of a model"),
    ],
)
def test_what_cannot_be_priced_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        dense(**fields)
    assert message in str(caught.value)


def test_adapters_on_experts_cannot_be_priced() -> None:
    with pytest.raises(ValidationError, match=r"loop\.lora_rank: adapters on experts"):
        moe(loop={"lora_rank": 2})


def test_passes_of_a_layout_without_one_loop_cannot_be_changed() -> None:
    with pytest.raises(BadInput, match="has not just one loop"):
        with_passes(dense(layout="each x2"), 3)
    with pytest.raises(BadInput, match="at one pass nothing is looped"):
        with_passes(dense(loop={}), 1)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (moe(loop={"kv_policy": "last"}), "attributes of its loop"),
        (moe(layout="none", value_embedding_layers="1"), "tables of value embeddings"),
    ],
)
def test_the_solver_refuses_what_it_cannot_hold_fixed(spec: ModelSpec, part: str) -> None:
    question = Question(spec, spec.visits, convention("paper"), CONTEXT, find_grid("bf16"))
    with pytest.raises(BadInput, match=f"small: has {part}, which can be counted but not solved for yet"):
        Problem(question, "uniform")
