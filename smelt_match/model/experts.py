"""Routed experts: many small feed-forwards, each on the tokens that chose it.

Shapes: T tokens, H width, E experts, K experts of each token, A = T·K assignments, I expert width, F columns of the
first matrix (2·I with gate and up side by side, I without a gate).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt_match.model.flops  # noqa: F401  (tells torch's FLOP counter what the operations below cost)
from smelt_match.model.precision import product_dtype
from smelt_match.model.router import Routing
from smelt_match.model.segments import expert_segments
from smelt_match.spec.model import ModelSpec


class Experts(nn.Module):
    """E feed-forwards in stacked matrices, inputs first: x · up.

    The forward pass then transposes nothing. On a CPU, a product of 128 rows with a matrix that is not in its cache
    takes 0.85 of the time that one with the transposed matrix takes.

    Attributes:
        up: (E, H, F), gate columns before up columns.
        down: (E, I, H).
        up_bias: (E, F), or None.
        down_bias: (E, H), or None.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        E, H, I = spec.num_experts, spec.hidden_size, spec.expert_intermediate_size
        self.gated = spec.gated_mlp
        columns = 2 * I if self.gated else I
        self.up = nn.Parameter(torch.empty(E, H, columns))
        self.down = nn.Parameter(torch.empty(E, I, H))
        self.up_bias = nn.Parameter(torch.empty(E, columns)) if spec.mlp_bias else None
        self.down_bias = nn.Parameter(torch.empty(E, H)) if spec.mlp_bias else None

    def forward(self, x_TH: Tensor, routing: Routing) -> Tensor:
        """The weighted sum of each token's experts, (T, H).

        On a GPU in bf16 with widths that torch's grouped GEMM accepts, tokens are sorted by expert and multiplied in
        two grouped calls. Elsewhere the same sum runs segment by segment: on a CPU, grouped GEMM has no float64, no
        widths off 16 bytes, and no compilation in float32.
        """
        dtype = product_dtype(x_TH)
        x_TH, weights_TK = x_TH.to(dtype), routing.weights_TK.to(dtype)
        found = (self.up, self.down, self.up_bias, self.down_bias)
        up, down, up_bias, down_bias = (None if tensor is None else tensor.to(dtype) for tensor in found)
        assert up is not None
        assert down is not None
        aligned = all(size % 8 == 0 for size in (*up.shape[1:], *down.shape[1:]))
        if x_TH.is_cuda and dtype == torch.bfloat16 and aligned:
            routing = routing._replace(weights_TK=weights_TK)
            return grouped(x_TH, routing, up, down, up_bias, down_bias, self.gated)
        return expert_segments(x_TH, weights_TK, routing.experts_TK, up, down, up_bias, down_bias, self.gated)


def activate(pre: Tensor, gated: bool) -> Tensor:
    """silu(gate)·up of stacked halves (SwiGLU, arXiv 2002.05202), or the exact GELU of everything."""
    if not gated:
        return F.gelu(pre)
    gate, up = pre.chunk(2, dim=-1)
    return F.silu(gate) * up


def grouped(
    x_TH: Tensor,
    routing: Routing,
    up_EHF: Tensor,
    down_EIH: Tensor,
    up_bias_EF: Tensor | None,
    down_bias_EH: Tensor | None,
    gated: bool,
) -> Tensor:
    """The experts by torch's grouped GEMM. Shapes do not depend on the routing."""
    T, K = routing.experts_TK.shape
    expert_A, order_A = routing.experts_TK.flatten().sort(stable=True)
    ends_E = routing.load_E.cumsum(0).to(torch.int32)
    weight_A1 = routing.weights_TK.flatten()[order_A, None]
    pre_AF = F.grouped_mm(x_TH[order_A // K], up_EHF, offs=ends_E)
    if up_bias_EF is not None:
        pre_AF = pre_AF + up_bias_EF[expert_A]
    y_AH = F.grouped_mm(activate(pre_AF, gated) * weight_A1, down_EIH, offs=ends_E)
    if down_bias_EH is not None:
        y_AH = y_AH + weight_A1 * down_bias_EH[expert_A]
    # Back to the tokens by a gather and a sum, not by index_add: atomics would add in another order every time.
    back_A = torch.empty_like(order_A).scatter_(0, order_A, torch.arange(T * K, device=order_A.device))
    return y_AH[back_A].view(T, K, -1).sum(dim=1)
