"""What an operator costs, read from the shapes of its arguments and from nothing else: no spec, no ledger.

Shapes: B rows, N query heads, S queries, P keys, D head size, C size of a value head.

A product of (m, k) and (k, n) is 2·m·k·n FLOPs. Attention is two products for each pair of a query and a key that it
may attend to: N·2·(D + C) each, half of all pairs where it is causal. Its backward pass costs twice that; kernels that
compute the scores again do so to save memory, which is no part of what the model costs. torch.utils.flop_counter counts
all pairs, 2.5 times for the backward pass, and knows neither the CPU's kernel nor grouped products.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from smelt_match.errors import BadInput
from smelt_match.model.flops import experts_flops, grouped_mm_flops

aten = torch.ops.aten
MATMUL_LIKE = re.compile(
    r"mm(_|$|\d)|matmul|gemm|linear|linalg|einsum|conv(olution|_|\d|$)|attention|attn|grouped|expert"
    r"|(^|_)(mv|addmv|dot|vdot|inner|outer|ger|addr|tensordot|bilinear|lstm|gru|rnn|cdist)(_|$)"
)


def costs_nothing(name: str) -> bool:
    """Whether an operator without a formula may be left out: elementwise work, sums, copies and views of torch's own.

    Args:
        name: As ``aten::mul``. What other libraries define could be anything, so that only a formula will do.
    """
    space, _, operator = name.partition("::")
    return space in ("aten", "prim", "prims") and MATMUL_LIKE.search(operator) is None


def unknown(names: Sequence[str]) -> NoReturn:
    """Refuse to measure what has no formula: it would count as nothing."""
    raise BadInput(
        f"cannot be measured: no FLOP formula for {', '.join(names)}", "smelt_match/measure/formulas.py has the others"
    )


def pairs(S: int, P: int, causal: bool) -> int:
    """Pairs of a query and a key that it may attend to; causal ones keep the first key for the first query."""
    if not causal:
        return S * P
    full = min(S, P)
    return full * (full + 1) // 2 + (S - full) * P


def attention_flops(q_BNSD: Sequence[int], k_BGPD: Sequence[int], v_BGPC: Sequence[int], causal: bool) -> int:
    """Two products for each pair and query head, forward."""
    B, N, S, D = q_BNSD
    return 2 * B * N * pairs(S, k_BGPD[-2], causal) * (D + v_BGPC[-1])


@torch.library.custom_op("smelt_match::attention", mutates_args=())
def attention(q_BNSD: Tensor, k_BGPD: Tensor, v_BGPC: Tensor, is_causal: bool) -> Tensor:
    """Attention as one operator on the meta device, where torch would take it apart into products of all pairs."""
    raise NotImplementedError("this operator has shapes only")


@torch.library.custom_op("smelt_match::attention_backward", mutates_args=())
def attention_backward(
    grad_BNSC: Tensor, q_BNSD: Tensor, k_BGPD: Tensor, v_BGPC: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `attention`."""
    raise NotImplementedError("this operator has shapes only")


@attention.register_fake
def _(q_BNSD: Tensor, _: Tensor, v_BGPC: Tensor, __: bool) -> Tensor:
    return q_BNSD.new_empty(*q_BNSD.shape[:-1], v_BGPC.shape[-1])


@attention_backward.register_fake
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, __: bool) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001  (torch passes it by name)
    *tensors, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *attention_backward(grad, *ctx.saved_tensors, ctx.is_causal), None


attention.register_autograd(_backward, setup_context=_keep)


def _of_attention(operator: Any, times: int) -> Callable[..., int]:
    """The formula of one of torch's attention kernels, whose arguments are found by their names in its schema."""
    names = [argument.name for argument in operator.default._schema.arguments]

    def formula(*args: Any, **kwargs: Any) -> int:
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("attn_mask") is not None or given.get("attn_bias") is not None:
            unknown([f"{operator} with a mask: shapes do not say how many pairs it leaves"])
        causal = bool(given.get("is_causal", False))
        return times * attention_flops(given["query"], given["key"], given["value"], causal)

    return formula


def _own_attention(*forward: Any, **_: Any) -> int:
    return attention_flops(*forward)


def _own_attention_backward(_grad: Any, *forward: Any, **_: Any) -> int:
    return 2 * attention_flops(*forward)


def _flex(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> int:
    """FlexAttention: the pairs that the mask itself allows, asked one by one, since a block mask only has blocks."""
    from torch.nn.attention.flex_attention import create_mask

    block_mask = next((arg for arg in args if isinstance(arg, tuple) and arg and callable(arg[-1])), None)
    B, N, S, D = query.shape
    if block_mask is None:
        return attention_flops(query.shape, key.shape, value.shape, causal=False)
    allowed = create_mask(block_mask[-1], B, 1, S, key.shape[-2], device=str(query.device))
    return 2 * N * int(allowed.sum()) * (D + value.shape[-1])


def _raw(formula: Callable[..., int]) -> Callable[..., int]:
    formula._get_raw = True  # type: ignore[attr-defined]  # what register_flop_formula sets: tensors, not shapes
    return formula


@_raw
def _flex_forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **_: Any) -> int:
    return _flex(query, key, value, *args)


@_raw
def _flex_backward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **_: Any) -> int:
    return 2 * _flex(query, key, value, *args)


_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
ATTENTION: dict[Any, Callable[..., int]] = {
    **{getattr(aten, name): _of_attention(getattr(aten, name), 1) for name in _KERNELS},
    **{getattr(aten, f"{name}_backward"): _of_attention(getattr(aten, f"{name}_backward"), 2) for name in _KERNELS},
    torch.ops.smelt_match.attention: _own_attention,
    torch.ops.smelt_match.attention_backward: _own_attention_backward,
    torch.ops.higher_order.flex_attention: _flex_forward,
    torch.ops.higher_order.flex_attention_backward: _flex_backward,
}
"""Formulas for torch's FLOP counter that take the place of its own."""

_WRONG = (aten._flash_attention_forward, aten._flash_attention_backward, aten._efficient_attention_forward,
          aten._efficient_attention_backward)  # fmt: skip
KNOWN = (flop_registry.keys() | ATTENTION.keys()) - set(_WRONG)
"""Operators that the counter has a formula for which is the model's cost."""


def _sizes(value: Any) -> list[int]:
    """The shape of a tensor in a traced graph."""
    found: list[int] = value.type().sizes()
    return found


def _traced_attention(inputs: list[Any], _: list[Any]) -> int:
    query, key, value, mask, _dropout, causal, *_rest = inputs
    if mask.type().kind() != "NoneType" or causal.toIValue() is None:
        unknown(["aten::scaled_dot_product_attention with a mask: shapes do not say how many pairs it leaves"])
    return attention_flops(_sizes(query), _sizes(key), _sizes(value), causal.toIValue()) // 2


def _traced_experts(inputs: list[Any], _: list[Any]) -> int:
    _x, _weights, experts, up, down, *_rest = inputs
    return experts_flops(None, None, *map(_sizes, (experts, up, down))) // 2


def _traced_grouped(inputs: list[Any], _: list[Any]) -> int:
    return grouped_mm_flops(*map(_sizes, inputs[:2])) // 2


_NORMS = ("aten::layer_norm", "aten::batch_norm", "aten::group_norm", "aten::instance_norm", "aten::mean")
TRACED: dict[str, Callable[..., int]] = {
    "aten::scaled_dot_product_attention": _traced_attention,
    "smelt_match::experts": _traced_experts,
    "smelt_match::top": lambda _inputs, _outputs: 0,
    "aten::_grouped_mm": _traced_grouped,
    "aten::grouped_mm": _traced_grouped,
    # fvcore has its own idea of what norms and averages cost; here they cost nothing.
    **dict.fromkeys(_NORMS, lambda _inputs, _outputs: 0),
}
"""Handles for fvcore, in multiply-adds, as it counts."""
