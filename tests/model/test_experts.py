"""The experts' fast paths compute the plain sum over a token's experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from smelt_match.model import segments
from smelt_match.model.experts import Experts, activate, grouped
from smelt_match.model.router import Router, Routing
from tests.model.tiny import build, tiny, tokens


def _experts(**changes: Any) -> tuple[Experts, Router]:
    model = build(tiny(num_experts=9, router_bias=True, **changes))
    experts = model.block(0).feed_forward
    with torch.no_grad():
        experts.router.bias[4] = -1e4  # an expert that nobody chooses
    return experts.experts, experts.router


def _naive(experts: Experts, x_TH: Tensor, routing: Routing) -> Tensor:
    """Token by token, expert by expert."""
    rows = []
    for x_H, weights_K, chosen_K in zip(x_TH, routing.weights_TK, routing.experts_TK, strict=True):
        total = torch.zeros_like(x_H)
        for weight, expert in zip(weights_K, chosen_K.tolist(), strict=True):
            up_bias = None if experts.up_bias is None else experts.up_bias[expert]
            down_bias = None if experts.down_bias is None else experts.down_bias[expert]
            hidden = activate(F.linear(x_H, experts.up[expert].t(), up_bias), experts.gated)
            total = total + weight * F.linear(hidden, experts.down[expert].t(), down_bias)
        rows.append(total)
    return torch.stack(rows)


def _segments(experts: Experts, x_TH: Tensor, routing: Routing) -> Tensor:
    return experts(x_TH, routing)


def _grouped(experts: Experts, x_TH: Tensor, routing: Routing) -> Tensor:
    weights = (experts.up, experts.down, experts.up_bias, experts.down_bias)
    return grouped(x_TH, routing, *weights, experts.gated)


@pytest.mark.parametrize("path", [_segments, _grouped])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 40])
def test_a_fast_path_equals_the_naive_sum_and_so_do_its_gradients(
    path: Any, gated: bool, bias: bool, count: int
) -> None:
    widths = {"hidden_size": 16, "expert_intermediate_size": 8}  # grouped GEMM wants 16 bytes
    experts, router = _experts(gated_mlp=gated, mlp_bias=bias, **widths)
    x_TH = torch.randn(count, 16, requires_grad=True)
    found = {}
    for compute in (_naive, path):
        x_TH.grad = None
        experts.zero_grad()
        router.zero_grad()
        y_TH = compute(experts, x_TH, router(x_TH))
        (y_TH * torch.linspace(-1, 1, y_TH.numel()).view_as(y_TH)).sum().backward()
        gradients = [x_TH.grad, router.weight.grad, *(parameter.grad for parameter in experts.parameters())]
        found[compute] = [y_TH, *gradients]
    for ours, expected in zip(found[path], found[_naive], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert not experts.up.grad[4].any()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_segments_have_the_gradients_of_finite_differences(gated: bool, bias: bool) -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    E, H, I, columns = 4, 5, 3, 6 if gated else 3
    chosen = torch.tensor([[0, 2], [2, 3], [3, 0]])  # nobody chooses 1
    biases = (random(E, columns), random(E, H)) if bias else (None, None)
    inputs = (random(3, H), random(3, 2), random(E, H, columns), random(E, I, H), *biases)
    assert torch.autograd.gradcheck(lambda x, w, *rest: segments.expert_segments(x, w, chosen, *rest, gated), inputs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("chunk", [1, 40, 2**20])
def test_neither_rounding_up_nor_chunks_change_the_sum_or_its_gradients(
    chunk: int, multiple: int, gated: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts, router = _experts(gated_mlp=gated, mlp_bias=bias)
    experts, router, x_TH = experts.double(), router.double(), torch.randn(30, 18, dtype=torch.float64)
    x_TH.requires_grad_()
    routing = router(x_TH)
    weights_TK = routing.weights_TK.detach().double().requires_grad_()
    given = [x_TH, weights_TK, *experts.parameters()]
    expected_TH = _naive(experts, x_TH, routing._replace(weights_TK=weights_TK))
    expected = torch.autograd.grad(expected_TH.square().sum(), given)
    monkeypatch.setattr(segments, "CHUNK", chunk)
    monkeypatch.setattr(segments, "_multiple", lambda *_: multiple)
    tensors = (experts.up, experts.down, experts.up_bias, experts.down_bias)
    found_TH = segments.expert_segments(x_TH, weights_TK, routing.experts_TK, *tensors, gated)
    torch.testing.assert_close(found_TH, expected_TH)
    torch.testing.assert_close(torch.autograd.grad(found_TH.square().sum(), given), expected)


def test_half_precision_on_a_cpu_has_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    mm = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: (counts.append(len(a)), mm(a, b, out=out))[1])
    chosen_TK = torch.randint(0, 5, (100, 2))
    x_TH, up_EHF, down_EIH = (torch.randn(*shape).bfloat16() for shape in ((100, 6), (5, 6, 8), (5, 4, 6)))
    segments.expert_segments(x_TH, torch.rand(100, 2).bfloat16(), chosen_TK, up_EHF, down_EIH, None, None, True)
    assert len(counts) == 10
    assert all(count % 32 == 0 for count in counts)
    counts.clear()  # a few rows come again anyway
    segments.expert_segments(x_TH[:3], torch.rand(3, 2).bfloat16(), chosen_TK[:3], up_EHF, down_EIH, None, None, True)
    assert sum(counts) == 12


def test_the_operations_keep_the_rules_of_custom_operations() -> None:
    x, weights, chosen = torch.randn(5, 6), torch.rand(5, 2), torch.tensor([[0, 1], [1, 2], [2, 0], [0, 1], [1, 0]])
    inputs = [x, weights, chosen, torch.randn(3, 6, 8), torch.randn(3, 4, 6), torch.randn(3, 8), torch.randn(3, 6)]
    inputs = [tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in inputs]
    torch.library.opcheck(torch.ops.smelt_match.experts.default, (*inputs, True, True))
    many = [x.detach().repeat(20, 1), weights.repeat(20, 1), chosen.repeat(20, 1), *inputs[3:]]
    half = [tensor.detach().bfloat16() if tensor.is_floating_point() else tensor for tensor in many]
    torch.library.opcheck(torch.ops.smelt_match.experts.default, (*half, True, True))


def test_inference_keeps_no_states_for_a_backward_pass() -> None:
    experts, router = _experts()
    x_TH = torch.randn(6, 18)
    routing = router(x_TH)
    weights = (experts.up, experts.down, None, None)
    op = torch.ops.smelt_match.experts
    with torch.no_grad():
        plain, none = op(x_TH, routing.weights_TK, routing.experts_TK, *weights, True, False)
        kept, states = op(x_TH, routing.weights_TK, routing.experts_TK, *weights, True, True)
    assert torch.equal(plain, kept)
    assert (none.shape, states.shape) == ((0,), (18, 10))


def test_half_precision_sums_in_single_precision() -> None:
    experts, router = _experts()
    x_TH = torch.randn(20, 18)
    expected = experts(x_TH, router(x_TH))
    half = Experts(tiny(num_experts=9)).to(torch.bfloat16)
    half.load_state_dict(experts.state_dict())
    found = half(x_TH.bfloat16(), router(x_TH.bfloat16()))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.1)


def test_shared_experts_are_added_through_their_gate() -> None:
    model = build(tiny(shared_expert_intermediate_size=10, shared_expert_gate=True))
    part, x_BSH = model.block(0).feed_forward, torch.randn(2, 3, 18)
    with_shared, _ = part(x_BSH)
    gate, shared = torch.sigmoid(part.shared_gate(x_BSH)), part.shared(x_BSH)[0]
    part.shared = None
    torch.testing.assert_close(with_shared, part(x_BSH)[0] + gate * shared)


def test_every_gradient_arrives_when_experts_have_no_tokens() -> None:
    model = build(tiny(num_experts=40))
    model(tokens(1, 2)).logits_BSV.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
