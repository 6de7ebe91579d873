"""The second sublayer of a block: a dense feed-forward, or routed experts with shared ones beside them.

Shapes: B rows, S tokens in a row, T = B·S, H width, E experts, F width of a feed-forward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from smelt_match.model.experts import Experts, activate
from smelt_match.model.router import Router
from smelt_match.spec.model import ModelSpec


class Balance(NamedTuple):
    """How evenly one visit used its experts: the balancing loss, and the assignments to each expert."""

    loss: Tensor
    load_E: Tensor


class Dense(nn.Module):
    """down(act(up(x))): SwiGLU with gate and up stacked in one matrix, or GELU without a gate."""

    def __init__(self, H: int, F: int, gated: bool, bias: bool) -> None:
        super().__init__()
        self.gated = gated
        self.up = nn.Linear(H, 2 * F if gated else F, bias=bias)
        self.down = nn.Linear(F, H, bias=bias)

    def forward(self, x_BSH: Tensor) -> tuple[Tensor, None]:
        """The sublayer's update, (B, S, H); a dense feed-forward has nothing to balance."""
        return self.down(activate(self.up(x_BSH), self.gated)), None


class MixtureOfExperts(nn.Module):
    """Routed experts, and shared ones that every token passes, scaled by a sigmoid gate where the spec has one.

    Source: shared experts, arXiv 2401.06066; their gate as in Qwen2-MoE (arXiv 2407.10671).
    """

    def __init__(self, spec: ModelSpec, balance: str) -> None:
        super().__init__()
        H, F = spec.hidden_size, spec.shared_expert_intermediate_size
        self.router = Router(spec, balance)
        self.experts = Experts(spec)
        self.shared = Dense(H, F, spec.gated_mlp, bias=False) if F else None
        self.shared_gate = nn.Linear(H, 1, bias=False) if F and spec.shared_expert_gate else None

    def forward(self, x_BSH: Tensor) -> tuple[Tensor, Balance]:
        """The sublayer's update, (B, S, H), and how evenly it used its experts."""
        x_TH = x_BSH.flatten(0, 1)
        routing = self.router(x_TH)
        update_BSH = self.experts(x_TH, routing).view_as(x_BSH)
        if self.shared is not None:
            shared_BSH, _ = self.shared(x_BSH)
            if self.shared_gate is not None:
                shared_BSH = shared_BSH * torch.sigmoid(self.shared_gate(x_BSH))
            update_BSH = update_BSH + shared_BSH
        return update_BSH, Balance(routing.loss, routing.load_E)


def feed_forward(spec: ModelSpec, block: int, balance: str) -> Dense | MixtureOfExperts:
    """The feed-forward of one block."""
    if block in spec.dense:
        assert spec.dense_intermediate_size is not None
        return Dense(spec.hidden_size, spec.dense_intermediate_size, spec.gated_mlp, spec.mlp_bias)
    return MixtureOfExperts(spec, balance)
