"""The ledger adds up, says what it computes, and agrees with a count made visit by visit."""

from __future__ import annotations

import ast
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.count import control_of, count
from smelt_match.budget.deviation import deviation
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput
from smelt_match.spec.family import countable, shipped
from smelt_match.spec.model import ModelSpec


@st.composite
def specs(draw: st.DrawFn, looped: bool = True) -> ModelSpec:
    k = draw(st.integers(1, 4))
    n_kv = draw(st.integers(1, 4))
    depth = draw(st.integers(1, 6))
    layout = draw(st.sampled_from(["none", "full x2", "each x3", "mid50x2", "early100x2"])) if looped else "none"
    return ModelSpec(
        name="random",
        hidden_size=draw(st.integers(1, 300)),
        num_layers=depth,
        num_experts=draw(st.integers(k, 40)),
        experts_per_token=k,
        expert_intermediate_size=draw(st.integers(1, 200)),
        num_attention_heads=n_kv * draw(st.integers(1, 4)),
        num_key_value_heads=n_kv,
        head_dim=2 * draw(st.integers(1, 64)),
        layout=layout,
        vocab_size=draw(st.none() | st.integers(1, 1000)),
        tie_word_embeddings=draw(st.booleans()),
    )


contexts = st.builds(
    lambda lengths, window: Context.documents(lengths, window, "random"),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
    st.none() | st.integers(1, 60),
)
rules = st.sampled_from(sorted(CONVENTIONS)).map(convention)


@given(specs(), rules, contexts)
def test_rows_add_up_exactly_to_the_totals(spec: ModelSpec, rule: object, context: Context) -> None:
    book = ledger(spec, rule, context)  # type: ignore[arg-type]
    sums = book.totals
    for column in ("stored", "active", "executed", "kv"):
        assert sum(getattr(row, column) for row in book.rows) == getattr(sums, column)
    assert sum((book.flops(row) for row in book.rows), Fraction(0)) == book.budget.flops


@given(specs(), contexts)
def test_the_paper_convention_agrees_with_a_walk_over_the_visits(spec: ModelSpec, context: Context) -> None:
    """Parameters block by block, FLOPs visit by visit: not a fold over groups."""
    H, d = spec.hidden_size, spec.head_dim
    n_q, n_kv = spec.num_attention_heads, spec.num_key_value_heads
    wq, wk, wo = H * n_q * d, H * n_kv * d, n_q * d * H
    matmuls = wq + wk + wk + wo + H * spec.num_experts + spec.experts_per_token * 3 * H * spec.expert_intermediate_size
    flops, cache = Fraction(0), 0
    for _ in spec.visits.visits:
        flops += 6 * matmuls + 3 * (2 * n_q * d * context.mean + 2 * n_q * d * context.mean)
        cache += 2 * n_kv * d
    stored = H
    for _ in range(spec.num_layers):
        stored += wq + wk + wk + wo + 2 * H
        stored += H * spec.num_experts + spec.num_experts * 3 * H * spec.expert_intermediate_size
    budget = ledger(spec, convention("paper"), context).budget
    assert (budget.flops, budget.params, budget.kv) == (flops, stored, cache)


@given(specs(), rules)
def test_the_written_formula_is_what_is_counted(spec: ModelSpec, rule: object) -> None:
    """The formula text of each row, evaluated, gives the row's parameters per block or FLOPs per visit and token."""
    book = ledger(spec, rule, Context.causal(9))  # type: ignore[arg-type]
    groups = {f"layers {n}": len(b) for b, n in ((b, _names(b)) for b, _ in spec.visits.groups())}
    for row in book.rows:
        text = row.written(numbers=True)
        blocks = groups.get(row.where, 1)
        if row.component == "experts":
            each, _, share = text.partition(" each, ")
            k, total = (int(part) for part in share.split(" of "))
            assert row.stored == blocks * total * _value(each)
            assert row.active == blocks * k * _value(each)
        elif row.component == "attention scores":
            billed = rule.attention != "none"  # type: ignore[attr-defined]
            assert row.scores == (blocks * row.visits * _value(text.removesuffix("·c")) if billed else 0)
        elif row.component == "KV cache":
            assert row.kv == blocks * row.visits * _value(text)
        elif row.component == "output head":
            assert row.active == _value(text.removesuffix(", tied"))
        else:
            assert row.stored == blocks * _value(text)
        assert row.matmul in (0, 6 * row.executed)


def _names(blocks: tuple[int, ...]) -> str:
    from smelt_match.spec.layout import block_names

    return block_names(blocks)


def _value(text: str) -> int:
    """Evaluate sums and products of integers, and nothing else."""

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        assert isinstance(node, ast.BinOp)
        left, right = walk(node.left), walk(node.right)
        return left * right if isinstance(node.op, ast.Mult) else left + right

    return walk(ast.parse(text.replace("·", "*"), mode="eval").body)


def test_a_loop_stores_its_block_once_and_executes_it_at_every_visit() -> None:
    base = countable(shipped()["200m_s95"])
    looped = base.changed(layout="full x3")
    one, three = (ledger(spec, convention("paper"), Context.causal(783)).budget for spec in (base, looped))
    assert three.params == one.params
    assert three.active == one.active
    assert three.flops == 3 * one.flops
    assert three.kv == 3 * one.kv


def test_split_heads_keep_the_kv_cache_and_attention_of_the_baseline() -> None:
    base = countable(shipped()["200m_s95"])
    split = base.changed(layout="mid50x2", loop_num_attention_heads=5, loop_num_key_value_heads=1)
    rule, context = convention("paper"), Context.causal(4096)
    off = deviation(ledger(split, rule, context).budget, ledger(base, rule, context).budget)
    assert off.kv == 0
    assert off.attention == 0


@pytest.mark.parametrize(
    ("name", "attended"),
    [("paper", 392), ("megatron", Fraction(783, 2)), ("torchtitan", 783), ("deepseek", Fraction(783, 2)), ("6n", 0)],
)
def test_each_convention_bills_its_own_attended_tokens(name: str, attended: Fraction) -> None:
    assert convention(name).attended(Context.causal(783)) == attended
    assert convention(name).attended(Context.given(Fraction(392), "test")) == attended  # s = 2c − 1


def test_torchtitan_bills_six_for_every_active_parameter_and_twelve_for_the_whole_sequence() -> None:
    spec = countable(shipped()["200m_s95"]).changed(vocab_size=1000)
    budget = ledger(spec, convention("torchtitan"), Context.causal(4096)).budget
    n_active = 209_419_520 + 1000 * 1280  # one traversal, and the output head
    assert budget.flops == 6 * n_active + 12 * 12 * 10 * 128 * 4096
    assert convention("palm") is convention("torchtitan")


def test_megatron_bills_no_router_and_half_the_sequence() -> None:
    spec = countable(shipped()["200m_s95"]).changed(vocab_size=1000)
    budget = ledger(spec, convention("megatron"), Context.causal(4096)).budget
    # 12·(6·H·Q·(1 + n_kv/n_q) … written as Megatron-LM does: 3 passes of 4·h·p·(h + h·g/n + s/2) and of the experts
    h, layers, p = 1280, 12, 1
    attention = 3 * 4 * h * p * (h + h * Fraction(2, 10) + Fraction(4096, 2))
    experts = 3 * 4 * h * 432 * 8 * Fraction(3, 2)
    logits = 3 * 2 * h * 1000
    assert budget.flops == layers * (attention + experts) + logits


def test_six_n_is_six_times_the_executed_parameters() -> None:
    spec = countable(shipped()["200m_s95_smelt"])
    book = ledger(spec, convention("6n"), Context.causal(4096))
    assert book.budget.flops == 6 * book.totals.executed
    assert book.budget.attention == 0


def test_a_tied_head_is_stored_once() -> None:
    base = countable(shipped()["nano_s85"])
    rule, context = convention("torchtitan"), Context.causal(10)
    untied = ledger(base.changed(vocab_size=500), rule, context).budget
    tied = ledger(base.changed(vocab_size=500, tie_word_embeddings=True), rule, context).budget
    assert untied.params - tied.params == 500 * base.hidden_size
    assert untied.flops == tied.flops


def test_include_head_adds_the_head_and_renames_the_convention() -> None:
    spec = countable(shipped()["nano_s85"]).changed(vocab_size=500)
    context = Context.causal(10)
    plain, head = convention("paper"), convention("paper", include_head=True)
    assert head.name == "paper+head"
    more = ledger(spec, head, context).budget.flops - ledger(spec, plain, context).budget.flops
    assert more == 6 * 500 * spec.hidden_size


def test_an_unknown_convention_is_refused_with_close_names() -> None:
    with pytest.raises(BadInput) as caught:
        convention("megatrom")
    assert "megatron" in caught.value.hint


@given(specs(looped=False))
def test_the_control_of_a_model_activates_all_its_experts(spec: ModelSpec) -> None:
    control = control_of(spec)
    assert control.num_experts == control.experts_per_token == spec.experts_per_token
    dense = spec.changed(num_experts=spec.experts_per_token)
    assert count(dense, convention("paper"), Context.causal(8)).sparsity == 0


@given(specs(), rules, contexts)
def test_a_model_deviates_from_itself_by_exactly_zero(spec: ModelSpec, rule: object, context: Context) -> None:
    budget = ledger(spec, rule, context).budget  # type: ignore[arg-type]
    assert set(vars(deviation(budget, budget)).values()) <= {Fraction(0), None}
