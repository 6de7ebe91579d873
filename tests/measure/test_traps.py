"""Traps of counting, each with the value that a naive counter gives beside the right one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import smelt_match.model.flops  # noqa: F401  (registers formulas, whose absence is a trap here)
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import Budget, ledger
from smelt_match.measure.executed import by_dispatch, by_trace
from smelt_match.measure.measured import measure
from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec
from smelt_match.spec.published import real_models
from tests.model.tiny import tiny

REAL = {model.spec.name: model.spec for model in real_models()}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch.jit's, of itself
        yield


def budget(spec: ModelSpec, tokens: int = 4096, rule: str = "paper") -> Budget:
    return ledger(spec, convention(rule), Context.causal(tokens)).budget


class Attends(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).sum()


def test_attention_on_the_cpu_counts_as_nothing() -> None:
    """Two products for each of 28 causal pairs, and twice that in the backward pass."""
    q, model = torch.randn(1, 2, 7, 4, requires_grad=True), Attends()
    with FlopCounterMode(display=False) as naive:
        model(q).backward()
    assert naive.get_total_flops() == 0
    assert by_dispatch(model, lambda: model(q))[1] == 3 * 2 * (2 * 28 * 4) * 2


def test_attention_on_the_meta_device_counts_pairs_that_causality_forbids() -> None:
    q, model = torch.randn(1, 2, 7, 4, requires_grad=True, device="meta"), Attends()
    with FlopCounterMode(display=False) as naive:
        model(q)
    assert naive.get_total_flops() == 2 * (2 * 7 * 7 * 4) * 2
    assert by_dispatch(model, lambda: model(q))[0].total() == 2 * (2 * 28 * 4) * 2
    assert by_trace(model, (torch.randn(1, 2, 7, 4),)).total() == 2 * (2 * 28 * 4) * 2


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, 16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.grouped_mm(x, self.experts, offs=torch.tensor([4, 8, 11], dtype=torch.int32)).square().sum()


def test_grouped_products_count_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 rows meet one of three matrices each; the backward pass costs twice that."""
    model, x = Grouped(), torch.randn(11, 16, requires_grad=True)
    with monkeypatch.context() as stock:
        stock.delitem(flop_registry, torch.ops.aten._grouped_mm)
        with FlopCounterMode(display=False) as naive:
            model(x).backward()
    assert naive.get_total_flops() == 0
    forward, both = by_dispatch(model, lambda: model(x))
    assert (forward.total(), both) == (2 * 11 * 16 * 8, 3 * 2 * 11 * 16 * 8)


def test_experts_with_shapes_only_still_count() -> None:
    """Which expert a token takes is unknown without data; k experts for each token is not."""
    spec = tiny()
    executed = measure(spec, (9,)).executed
    wanted = 2 * 3 * spec.hidden_size * spec.expert_intermediate_size * spec.experts_per_token
    assert executed["experts"] == 9 * spec.num_layers * wanted


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.up(x))


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return x.sum()


def test_the_parent_row_of_a_loop_drops_backward_passes() -> None:
    """torch keeps one entry for a module that is called three times: its parents see the last visit's gradients."""
    model, x = Looped(), torch.randn(5, 8, requires_grad=True)
    visit = 2 * 5 * 8 * 8
    with FlopCounterMode(display=False) as naive:
        model(x).backward()
    rows = {name: sum(counts.values()) for name, counts in naive.get_flop_counts().items()}
    assert rows["Looped"] < 3 * 3 * visit
    forward, both = by_dispatch(model, lambda: model(x))
    assert both == rows["Global"] == 3 * 3 * visit
    assert forward == {"block.up": 3 * visit}


def test_a_looped_model_counts_both_passes_at_every_visit() -> None:
    once, thrice = measure(tiny("none"), (9,)), measure(tiny("full x3"), (9,))
    assert thrice.train == 3 * once.train
    assert thrice.params == once.params


def test_aliases_are_counted_twice() -> None:
    """A tied head, and a block that stands twice in a list, are one tensor each."""
    spec = tiny("full x2", tie_word_embeddings=True)
    model = LoopedTransformer(spec)
    unrolled = nn.ModuleList([model.block(index) for index in model.visits])
    naive = sum(tensor.numel() for tensor in unrolled.state_dict().values())
    blocks = budget(spec).params - spec.hidden_size  # without the final norm
    assert naive == 2 * blocks
    assert sum(parameter.numel() for parameter in unrolled.parameters()) == blocks
    found = measure(spec, (9,)).params
    assert "output head" not in found
    assert sum(found.values()) == budget(spec, rule="torchtitan").params


def test_a_head_that_is_not_h_over_n_q() -> None:
    """Qwen3-30B-A3B: H 2048, 32 heads of 128 and not of 64."""
    spec = REAL["Qwen3-30B-A3B"]
    naive = spec.changed(head_dim=spec.hidden_size // spec.num_attention_heads)
    assert budget(spec).kv == 2 * budget(naive).kv == 48 * 2 * 4 * 128
    assert budget(spec).attention == 2 * budget(naive).attention
    assert budget(spec).params - budget(naive).params == 48 * (2 * 2048 * 64 * (32 + 4) + 2 * 64)


def test_a_window_is_not_halved() -> None:
    """gpt-oss-20b: of 4,096 tokens with a window of 128, all but the first 127 attend to 128, and not to 64."""
    spec = REAL["gpt-oss-20b"]
    layer = 12 * 64 * 64
    within = Fraction(sum(min(token, 128) for token in range(1, 4097)), 4096)
    assert 126 < within < 127
    right = 12 * layer * within + 12 * layer * Fraction(4097, 2)
    naive = 12 * layer * 64 + 12 * layer * 2048
    assert budget(spec).attention == right != naive


def test_latent_attention_caches_no_keys_and_values_of_heads() -> None:
    """DeepSeek-V3: 512 + 64 elements for each token and layer; 128 heads of 192 and 128 would be 71 times as many."""
    spec = REAL["DeepSeek-V3"]
    naive = 61 * 128 * (192 + 128)
    assert budget(spec).kv == 61 * (512 + 64)
    assert naive == Fraction(640, 9) * budget(spec).kv


def test_compute_is_billed_at_every_visit_and_not_once_for_each_parameter() -> None:
    """A fold over parameters() bills a loop once."""
    spec = tiny("full x4")
    parameters = budget(spec, rule="6n").params
    assert budget(spec, rule="6n").flops > 2 * 6 * parameters * Fraction(spec.experts_per_token, spec.num_experts)
    gains = 6 * spec.hidden_size  # of the final norm, once
    assert budget(spec, rule="6n").flops - gains == 4 * (budget(tiny("none"), rule="6n").flops - gains)
