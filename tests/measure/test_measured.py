"""Counted = built = executed: every shipped spec at full width without memory, and the traps of the two counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput
from smelt_match.measure import formulas, measured
from smelt_match.measure.agreement import agreement, attempt, compare, context, documents_of
from smelt_match.measure.executed import by_dispatch, by_trace
from smelt_match.measure.measured import measure
from smelt_match.model.experts import grouped
from smelt_match.model.router import Router
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec
from tests.model.tiny import tiny

SYSTEMS = {
    "mor-360m-recursive3", "recursive-gemma-2b", "saunshi-12x2", "saunshi-8x3", "saunshi-6x4", "saunshi-4x6",
    "saunshi-middle",
}  # fmt: skip
SPECS = {
    name: entry.spec
    for name, entry in shipped().items()
    if isinstance(entry.spec, ModelSpec) and (entry.family in ("smelt", "nano") or name in SYSTEMS)
}
LAYOUTS = ["none", "mid50x2", "mid50x3", "full x2", "each x3", "1-[1x2]-[1x3]-1"]


def differences(
    spec: ModelSpec, documents: tuple[int, ...] = (9,), head: bool = False, device: str = "meta"
) -> list[Any]:
    rule = convention("paper", head)
    found = measure(spec, documents, head, device)
    checks = compare(ledger(spec, rule, context(documents)), found, spec.tie_word_embeddings)
    assert len(checks) > 10
    return [check for check in checks if check.difference]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_shipped_spec_at_full_width_is_built_and_run_as_it_is_counted(name: str) -> None:
    spec = SPECS[name]
    found = agreement(spec, context_of(spec), trace=name.startswith("200m_s95"))
    assert found.checks
    assert found.different == []


def test_the_paper_context_is_one_document_of_783_tokens() -> None:
    assert documents_of(context_of(SPECS["200m_s95"])) == ((783,), "")
    assert measure(SPECS["200m_s95"], trace=False).executed["attention scores"] == 12 * 4 * 10 * 128 * 392 * 783


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_every_layout_at_reduced_width(layout: str, device: str) -> None:
    assert differences(tiny(layout), device=device, head=True) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 10},
        {"num_key_value_heads": 4},
        {"tie_word_embeddings": True},
        {"shared_expert_intermediate_size": 10, "attention_gate": True},
        {"qk_norm": "head", "norm_bias": True},
        {"mlp_bias": True, "router_bias": True, "attention_bias": True, "gated_mlp": False},
        {"dense_layers": "1-2", "dense_intermediate_size": 18},
        {"value_head_dim": 10},
        {"layout": "mid50x2", "loop_num_attention_heads": 2, "loop_num_key_value_heads": 1},
    ],
)
@pytest.mark.parametrize("head", [False, True])
def test_every_part_that_can_be_built(changes: dict[str, Any], head: bool) -> None:
    assert differences(tiny(**changes), head=head) == []


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("layout", ["mid50x3", "full x2", "1-[1x2]-[1x3]-1"])
@pytest.mark.parametrize(
    "loop",
    [{"kv_policy": "shared"}, {"kv_policy": "last"}, {"kv_policy": "ring", "kv_ring": 2}, {"residual_scale": "1"}],
)
def test_every_attribute_of_a_loop_that_can_be_built(loop: dict[str, Any], layout: str, head: bool) -> None:
    for device in ("meta", "cpu"):
        assert differences(tiny(layout, loop=loop), (5, 8), head, device) == []


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_packed_documents_cost_what_each_of_them_costs(device: str) -> None:
    assert differences(tiny("mid50x2"), (5, 1, 8), device=device) == []


def test_a_looped_block_is_stored_once_and_executed_at_every_visit() -> None:
    once, twice = measure(tiny("none"), (9,)), measure(tiny("full x2"), (9,))
    assert twice.params == once.params
    assert twice.executed == {name: 2 * flops for name, flops in once.executed.items()} == twice.traced
    assert (twice.train, twice.kv_bytes, twice.kv_slots) == (2 * once.train, 2 * once.kv_bytes, 8)


def test_tied_weights_are_one() -> None:
    assert "output head" not in measure(tiny(tie_word_embeddings=True), (9,)).params


def test_a_causal_document_has_half_of_the_pairs() -> None:
    assert formulas.pairs(783, 783, True) == 392 * 783
    assert formulas.pairs(4, 2, True) == 1 + 2 + 2 + 2
    assert formulas.pairs(2, 4, True) == 3
    assert formulas.pairs(3, 4, False) == 12


class Attends(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).sum()


def test_the_kernel_of_the_cpu_that_torch_counts_as_nothing() -> None:
    q = torch.randn(1, 2, 7, 4, requires_grad=True)
    with FlopCounterMode(display=False) as stock:
        Attends()(q).backward()
    assert stock.get_total_flops() == 0
    _, both = by_dispatch(Attends(), lambda: Attends()(q))
    assert both == 3 * 2 * 2 * 28 * 8


def test_grouped_products() -> None:
    spec = tiny(hidden_size=16, expert_intermediate_size=8)
    router, x = Router(spec, "loss"), torch.randn(11, 16)
    nn.init.normal_(router.weight)
    up, down = torch.randn(7, 16, 16, requires_grad=True), torch.randn(7, 8, 16, requires_grad=True)

    class Runs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return grouped(x, router(x), up, down, None, None, True).sum()

    model = Runs()
    forward, _ = by_dispatch(model, lambda: model(x))
    assert forward.total() == 2 * 11 * 16 * 7 + 2 * 33 * (16 * 16 + 8 * 16)


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (lambda x: torch.mv(x, x[0]).sum(), "aten::mv"),
        (lambda x: torch.dot(x[0], x[1]), "aten::dot"),
        (lambda x: torch.cdist(x, x).sum(), "cdist"),
    ],
)
def test_a_product_without_a_formula_is_an_error_that_names_it(run: Any, told: str) -> None:
    class Runs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return run(x)  # type: ignore[no-any-return]

    x = torch.randn(4, 4, requires_grad=True)
    with pytest.raises(BadInput, match=told):
        by_dispatch(Runs(), lambda: Runs()(x))
    with pytest.raises(BadInput, match=told):
        by_trace(Runs(), (x,))


def test_a_mask_hides_how_many_pairs_are_left() -> None:
    q, mask = torch.randn(1, 2, 7, 4, requires_grad=True), torch.ones(7, 7, dtype=torch.bool)
    with pytest.raises(BadInput, match="mask"):
        by_dispatch(nn.Identity(), lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum())


@pytest.mark.parametrize("name", ["aten::lgamma", "aten::mul", "aten::cumsum", "aten::hamming_window", "prim::device"])
def test_elementwise_work_costs_nothing(name: str) -> None:
    assert formulas.costs_nothing(name)


@pytest.mark.parametrize("name", ["aten::_int_mm", "aten::_grouped_mm", "aten::conv2d", "aten::linear", "mine::add"])
def test_products_and_what_others_define_cost_something(name: str) -> None:
    assert not formulas.costs_nothing(name)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_formula_that_is_off_by_one_is_noticed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = formulas.pairs
    monkeypatch.setattr(formulas, "pairs", lambda *args: right(*args) + 1)
    found = {(check.component, check.method) for check in differences(tiny(), device=device)}
    assert {
        ("attention scores", "fvcore"),
        ("attention scores", "FlopCounterMode"),
        ("total", "FlopCounterMode"),
    } <= found


def test_a_block_counted_once_too_often_is_noticed() -> None:
    spec = tiny("mid50x2")
    found = measure(spec, (9,))
    checks = compare(ledger(tiny("mid50x3"), convention("paper"), context((9,))), found, False)
    assert {check.quantity for check in checks if check.difference} == {
        "flops_forward", "flops_train", "kv_elements_per_token",
    }  # fmt: skip


def test_a_really_filled_cache_holds_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    inner = measured._filled
    monkeypatch.setattr(measured, "_filled", lambda *args: kept.append(inner(*args)) or kept[-1])
    spec = tiny("mid50x2")
    found = measure(spec, (9,), device="cpu")
    assert found.kv_bytes == ledger(spec, convention("paper"), Context.causal(9)).budget.kv * 4 * 9
    assert found.kv_slots == len(spec.visits.visits)
    assert all(slot.keys_BPGD[:, -1].abs().sum() > 0 for slot in kept[0].slots)


def test_what_cannot_be_built_is_told_by_its_part() -> None:
    spec = (
        tiny(sliding_window=4, window_layers="1-4")
        if "window_layers" in ModelSpec.model_fields
        else tiny(sliding_window=4)
    )
    found = attempt(spec, Context.causal(9))
    assert found.words.startswith("not measured: ")
    assert "sliding_window" in found.words
