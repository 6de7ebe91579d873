"""Experts one after the other, each on its own rows: exact on any device, dtype and width, opaque to the compiler.

Shapes: T tokens, H width, E experts, K experts of each token, A = T·K assignments sorted by expert, R rows that are
computed for them (A, or a few more: see `_multiple`), I expert width, F columns of the first matrix (2·I gated, I
plain), c rows of some consecutive experts.

One operation does gather, both products, activation, weighting and the sum, some experts at a time: their states stay
in the processor's cache, where those of all experts would be fresh pages of memory for every step, and elementwise work
is not cut into pieces as small as one expert's. Its backward pass needs nothing but the inputs and the states before
the activation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten
# Elements of a chunk's states. At widths of 116 to 672 on two cores, chunks of a half to twice as many take as long;
# of an eighth, up to a fifth longer; and all experts at once, up to a third longer at the larger widths.
CHUNK = 2**20
ROUND = 32  # rows; 64 and 128 take as long


def expert_segments(
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EHF: Tensor,
    down_EIH: Tensor,
    up_bias_EF: Tensor | None,
    down_bias_EH: Tensor | None,
    gated: bool,
) -> Tensor:
    """Σ over a token's experts of weight · (act(x · up + bias) · down + bias), as (T, H)."""
    inputs = (x_TH, weights_TK, up_EHF, down_EIH, up_bias_EF, down_bias_EH)
    save = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    found = _experts(x_TH, weights_TK, experts_TK, up_EHF, down_EIH, up_bias_EF, down_bias_EH, gated, save)
    y_TH: Tensor = found[0]
    return y_TH


class _Chunk(NamedTuple):
    """Rows of consecutive experts: where they are, how many each expert has, and what they are."""

    span: slice
    experts: slice
    sizes: list[int]
    tokens_c: Tensor
    experts_c: Tensor
    weights_c1: Tensor


def _multiple(x: Tensor, experts_TK: Tensor, num_experts: int) -> int:
    """What each expert's number of rows is rounded up to.

    For half precision on a CPU, oneDNN generates code for every new shape of a product, in up to 10 ms where a product
    takes 0.5, and keeps it: numbers of rows have to come again. Small ones do so anyway; other kernels take any.
    """
    half = x.is_cpu and x.dtype in (torch.bfloat16, torch.float16)
    return ROUND if half and experts_TK.numel() >= ROUND * num_experts else 1


class _Dispatch:
    """Rows in order of expert; within an expert, in order of tokens.

    Where an expert's rows are rounded up, its last one is repeated with weight 0.

    Attributes:
        order_R: The assignment (token · K + choice) of each row.
        weights_R1: Of each row.
        chunks: The rows, some experts at a time.
        most: Rows of the largest chunk.
    """

    def __init__(self, weights_TK: Tensor, experts_TK: Tensor, num_experts: int, width: int, multiple: int) -> None:
        self.order_R = _stable_order(experts_TK.flatten(), num_experts)
        sizes_E = torch.bincount(experts_TK.flatten(), minlength=num_experts)
        if multiple > 1:
            source_R, added_R, sizes_E = _rounded_up(sizes_E, multiple)
            self.order_R = self.order_R[source_R]
        experts_R = experts_TK.flatten()[self.order_R]
        tokens_R = self.order_R.div(experts_TK.shape[1], rounding_mode="floor")
        self.weights_R1 = weights_TK.flatten()[self.order_R, None]
        if multiple > 1:
            self.weights_R1[added_R] = 0
        sizes: list[int] = sizes_E.tolist()
        self.chunks = [
            _Chunk(span, experts, sizes[experts], tokens_R[span], experts_R[span], self.weights_R1[span])
            for span, experts in _chunks(sizes, width)
        ]
        self.most = max(len(chunk.tokens_c) for chunk in self.chunks)


def _rounded_up(counts_E: Tensor, multiple: int) -> tuple[Tensor, Tensor, Tensor]:
    """The source of each row when counts are rounded up by repeating an expert's last row, which rows are such
    repetitions, and the counts rounded up."""
    sizes_E = counts_E.add(multiple - 1).div(multiple, rounding_mode="floor").mul(multiple)
    added_E = sizes_E - counts_E
    before_R = (added_E.cumsum(0) - added_E).repeat_interleave(sizes_E)
    own_R = torch.arange(len(before_R), device=counts_E.device) - before_R
    last_R = (counts_E.cumsum(0) - 1).repeat_interleave(sizes_E)
    return own_R.minimum(last_R), own_R > last_R, sizes_E


def _stable_order(experts_A: Tensor, num_experts: int) -> Tensor:
    """Indices that sort by expert and keep the order within one.

    NumPy sorts integers of 16 bits by their digits, in a tenth of the time of torch's sort by comparison.
    """
    if experts_A.is_cpu and num_experts <= torch.iinfo(torch.int16).max:
        return torch.from_numpy(experts_A.to(torch.int16).numpy().argsort(kind="stable"))
    return experts_A.argsort(stable=True)


def _chunks(sizes: list[int], width: int) -> Iterator[tuple[slice, slice]]:
    """Runs of experts with rows of at least `CHUNK` elements, the last one excepted: (rows, experts)."""
    start = end = first = 0
    for expert, size in enumerate(sizes):
        end += size
        if (end - start) * width >= CHUNK or expert == len(sizes) - 1:
            yield slice(start, end), slice(first, expert + 1)
            start, first = end, expert + 1


def _most_rows(x_TH: Tensor, experts_TK: Tensor, num_experts: int) -> int:
    """R if every expert is rounded up by the most, since shapes may not depend on the routing."""
    return experts_TK.numel() + (_multiple(x_TH, experts_TK, num_experts) - 1) * num_experts


def _products(left: Iterable[Tensor], right: Iterable[Tensor], out: Iterable[Tensor]) -> None:
    """One product for each expert. One without rows has no output, or a gradient of zeros."""
    for a, b, product in zip(left, right, out, strict=True):
        if product.numel():
            torch.mm(a, b, out=product)


def _accumulator(like: Tensor) -> Tensor:
    """Zeros to add contributions up in: never in half precision."""
    dtype = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.zeros_like(like, dtype=dtype, memory_format=torch.contiguous_format)


# Halves of `pre_cF` have strided rows, whose ends torch's exponentials take element by element (at a width of 44, a
# fourth of all elements and three fourths of the time). Buffers without gaps are taken whole.


def _activate(pre_cF: Tensor, gated: bool, out: Tensor, silu_cI: Tensor) -> Tensor:
    """silu(gate)·up, leaving silu(gate) in ``silu_cI`` (which may be ``out``); or gelu."""
    if not gated:
        return aten.gelu.out(pre_cF, out=out)  # type: ignore[no-any-return]
    gate_cI, up_cI = pre_cF.chunk(2, dim=1)
    return torch.mul(aten.silu_(silu_cI.copy_(gate_cI)), up_cI, out=out)


def _activate_backward(dh_cI: Tensor, pre_cF: Tensor, gated: bool, out: Tensor, silu_cI: Tensor) -> Tensor:
    """The gradient before the activation, from what `_activate` left. Overwrites ``dh_cI`` and ``silu_cI``."""
    if not gated:
        return aten.gelu_backward.grad_input(dh_cI, pre_cF, grad_input=out)  # type: ignore[no-any-return]
    gate_cI, up_cI = pre_cF.chunk(2, dim=1)
    dgate_cI, dup_cI = out.chunk(2, dim=1)
    torch.mul(dh_cI, silu_cI, out=dup_cI)
    aten.silu_backward.grad_input(dh_cI.mul_(up_cI), silu_cI.copy_(gate_cI), grad_input=dh_cI)
    dgate_cI.copy_(dh_cI)
    return out


@torch.library.custom_op("smelt_match::experts", mutates_args=())
def _experts(
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EHF: Tensor,
    down_EIH: Tensor,
    up_bias_EF: Tensor | None,
    down_bias_EH: Tensor | None,
    gated: bool,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """The sum, and the states before the activation for the backward pass (empty unless ``save``)."""
    E, H, F = up_EHF.shape
    dispatch = _Dispatch(weights_TK, experts_TK, E, H, _multiple(x_TH, experts_TK, E))
    y_TH = _accumulator(x_TH)
    pre_RF = x_TH.new_empty(_most_rows(x_TH, experts_TK, E) if save else dispatch.most, F)
    x_buffer, y_buffer = x_TH.new_empty(2, dispatch.most, H)
    h_buffer = x_TH.new_empty(dispatch.most, down_EIH.shape[1])
    ups, downs = up_EHF.unbind(), down_EIH.unbind()
    for span, experts, sizes, tokens_c, experts_c, weights_c1 in dispatch.chunks:
        c = len(tokens_c)
        x_cH = torch.index_select(x_TH, 0, tokens_c, out=x_buffer[:c])
        pre_cF = pre_RF[span] if save else pre_RF[:c]
        _products(x_cH.split_with_sizes(sizes), ups[experts], pre_cF.split_with_sizes(sizes))
        if up_bias_EF is not None:
            pre_cF += up_bias_EF[experts_c]
        h_cI = _activate(pre_cF, gated, h_buffer[:c], h_buffer[:c]).mul_(weights_c1)
        y_cH = y_buffer[:c]
        _products(h_cI.split_with_sizes(sizes), downs[experts], y_cH.split_with_sizes(sizes))
        if down_bias_EH is not None:
            y_cH.addcmul_(weights_c1, down_bias_EH[experts_c])
        y_TH.index_add_(0, tokens_c, y_cH.to(y_TH.dtype))
    pre_RF[len(dispatch.order_R) :] = 0
    return y_TH.to(x_TH.dtype), pre_RF if save else x_TH.new_empty(0)


@torch.library.custom_op("smelt_match::experts_backward", mutates_args=())
def _experts_backward(
    grad_TH: Tensor,
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EHF: Tensor,
    down_EIH: Tensor,
    up_bias_EF: Tensor | None,
    down_bias_EH: Tensor | None,
    pre_RF: Tensor,
    gated: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weights, both matrices and both biases (empty where there are none)."""
    E, I, H = down_EIH.shape
    dispatch = _Dispatch(weights_TK, experts_TK, E, H, _multiple(x_TH, experts_TK, E))
    dx_TH, dweights_R1 = _accumulator(x_TH), torch.empty_like(dispatch.weights_R1)
    dup_EHF, ddown_EIH = torch.empty_like(up_EHF), torch.empty_like(down_EIH)
    biases = (up_bias_EF, down_bias_EH)
    dup_bias_EF, ddown_bias_EH = (x_TH.new_empty(0) if bias is None else _accumulator(bias) for bias in biases)
    x_buffer, dy_buffer = x_TH.new_empty(2, dispatch.most, H)
    h_buffer, dh_buffer, silu_buffer = x_TH.new_empty(3, dispatch.most, I)
    dpre_buffer = x_TH.new_empty(dispatch.most, up_EHF.shape[2])
    ups, downs, dups, ddowns = (tensor.unbind() for tensor in (up_EHF.mT, down_EIH.mT, dup_EHF, ddown_EIH))
    for span, experts, sizes, tokens_c, experts_c, weights_c1 in dispatch.chunks:
        c, pre_cF = len(tokens_c), pre_RF[span]
        x_cH = torch.index_select(x_TH, 0, tokens_c, out=x_buffer[:c])
        dy_cH = torch.index_select(grad_TH, 0, tokens_c, out=dy_buffer[:c])
        h_cI, dh_cI, silu_cI, dpre_cF = h_buffer[:c], dh_buffer[:c], silu_buffer[:c], dpre_buffer[:c]
        _products(dy_cH.split_with_sizes(sizes), downs[experts], dh_cI.split_with_sizes(sizes))
        _activate(pre_cF, gated, h_cI, silu_cI)
        torch.sum(torch.mul(dh_cI, h_cI, out=dpre_cF[:, :I]), dim=1, keepdim=True, out=dweights_R1[span])
        _products(
            h_cI.mul_(weights_c1).mT.split_with_sizes(sizes, dim=1), dy_cH.split_with_sizes(sizes), ddowns[experts]
        )
        if down_bias_EH is not None:
            dweights_R1[span] += (dy_cH * down_bias_EH[experts_c]).sum(dim=1, keepdim=True)
            ddown_bias_EH.index_add_(0, experts_c, (dy_cH * weights_c1).to(ddown_bias_EH.dtype))
        _activate_backward(dh_cI.mul_(weights_c1), pre_cF, gated, dpre_cF, silu_cI)
        _products(x_cH.mT.split_with_sizes(sizes, dim=1), dpre_cF.split_with_sizes(sizes), dups[experts])
        if up_bias_EF is not None:
            dup_bias_EF.index_add_(0, experts_c, dpre_cF.to(dup_bias_EF.dtype))
        dx_cH = dy_cH  # its last use is past
        _products(dpre_cF.split_with_sizes(sizes), ups[experts], dx_cH.split_with_sizes(sizes))
        dx_TH.index_add_(0, tokens_c, dx_cH.to(dx_TH.dtype))
    # A row that was added has the gradient of the one that it repeats.
    dweights_TK = weights_TK.new_empty(weights_TK.shape)
    dweights_TK.view(-1).index_copy_(0, dispatch.order_R, dweights_R1[:, 0])
    dtype = x_TH.dtype
    return dx_TH.to(dtype), dweights_TK, dup_EHF, ddown_EIH, dup_bias_EF.to(dtype), ddown_bias_EH.to(dtype)


@_experts.register_fake
def _(x_TH: Tensor, _: Tensor, experts_TK: Tensor, up_EHF: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    saved = (_most_rows(x_TH, experts_TK, len(up_EHF)), up_EHF.shape[2]) if rest[-1] else (0,)
    return torch.empty_like(x_TH, memory_format=torch.contiguous_format), x_TH.new_empty(saved)


@_experts_backward.register_fake
def _(_: Tensor, x_TH: Tensor, weights_TK: Tensor, __: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    matrices_and_biases = [x_TH.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in rest[:4]]
    dx_TH = torch.empty_like(x_TH, memory_format=torch.contiguous_format)
    return dx_TH, torch.empty_like(weights_TK), *matrices_and_biases


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.gated, _ = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else zeros as large as the saved states


def _backward(ctx: Any, grad_TH: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_TH is None:
        return (None,) * 9
    x, weights, experts, up, down, up_bias, down_bias, pre = ctx.saved_tensors
    dx, dweights, dup, ddown, dup_bias, ddown_bias = _experts_backward(
        grad_TH, x, weights, experts, up, down, up_bias, down_bias, pre, ctx.gated
    )
    biases = (None if up_bias is None else dup_bias, None if down_bias is None else ddown_bias)
    return dx, dweights, None, dup, ddown, *biases, None, None


_experts.register_autograd(_backward, setup_context=_setup)
