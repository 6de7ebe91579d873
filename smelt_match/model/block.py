"""A block: weights that are stored once and executed at each of their visits.

Shapes: B rows, S tokens in a row, H width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smelt_match.model.attention import Attention
from smelt_match.model.cache import KeysAndValues, Slot
from smelt_match.model.feed_forward import Balance, feed_forward
from smelt_match.model.norm import norm
from smelt_match.model.reach import Reach
from smelt_match.model.rotary import Rotation
from smelt_match.spec.model import ModelSpec


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each update scaled before it joins the residual stream.

    With r visits and scale 1/r (arXiv 2609.01343v3, Eq. 8 and 9):

        a = x + 1/r · attention(norm(x))        y = a + 1/r · feed_forward(norm(a))

    Args:
        spec: The model.
        index: The block, from 0.
        balance: How its router is kept balanced.
        residual_scale: ``1/r``, or ``1`` for plain residuals in loops too.
    """

    def __init__(self, spec: ModelSpec, index: int, balance: str, residual_scale: str) -> None:
        super().__init__()
        visits = spec.visits.counts[index]
        heads = (spec.num_attention_heads, spec.num_key_value_heads) if visits == 1 else spec.loop_heads
        self.scale = 1 / visits if residual_scale == "1/r" else 1.0
        self.attention_norm = norm(spec.hidden_size, spec.rms_norm_eps, spec.norm_bias)
        shared = visits > 1 and spec.loop is not None and spec.loop.kv_policy == "shared"
        self.attention = Attention(spec, heads, shared)
        self.feed_forward_norm = norm(spec.hidden_size, spec.rms_norm_eps, spec.norm_bias)
        self.feed_forward = feed_forward(spec, index, balance)

    def forward(
        self,
        x_BSH: Tensor,
        rotation: Rotation,
        reach: Reach,
        slot: Slot | None = None,
        first: KeysAndValues | None = None,
    ) -> tuple[Tensor, Balance | None, KeysAndValues | None]:
        """One visit: the residual stream after it, how evenly it used its experts (None if dense), and what later
        visits read of its keys and values (None but under the KV policy ``shared``)."""
        update_BSH, kept = self.attention(self.attention_norm(x_BSH), rotation, reach, slot, first)
        x_BSH = self._add(x_BSH, update_BSH)
        update_BSH, balance = self.feed_forward(self.feed_forward_norm(x_BSH))
        return self._add(x_BSH, update_BSH), balance, kept

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        return x + update if self.scale == 1.0 else torch.add(x, update, alpha=self.scale)
