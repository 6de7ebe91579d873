"""Grouped-query attention.

Shapes: B rows, S tokens in a row, P tokens attended to, H width, N query heads, G key-value heads, D head size,
C size of a value head, t tokens of one document.
Source: GQA, arXiv 2305.13245; query-key norms as in Qwen3 (``head``) and OLMoE (``width``); the output gate as in
arXiv 2505.06708.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smelt_match.model.cache import KeysAndValues, Slot
from smelt_match.model.norm import RMSNorm
from smelt_match.model.reach import Reach
from smelt_match.model.rotary import Rotation
from smelt_match.spec.model import ModelSpec


class Attention(nn.Module):
    """One attention sublayer, without its norm and residual.

    Args:
        spec: The model.
        heads: (n_q, n_kv) of this block.
        hands_on: Whether later visits read the keys and values of the first (the KV policy ``shared``).
    """

    def __init__(self, spec: ModelSpec, heads: tuple[int, int], hands_on: bool = False) -> None:
        super().__init__()
        N, G = heads
        H, D, C = spec.hidden_size, spec.head_dim, spec.value_head_dim or spec.head_dim
        self.sizes = (N, G, D, C)
        self.query = nn.Linear(H, N * D, bias=spec.attention_bias)
        self.key = nn.Linear(H, G * D, bias=spec.attention_bias)
        self.value = nn.Linear(H, G * C, bias=spec.attention_bias)
        self.output = nn.Linear(N * C, H, bias=spec.attention_output_bias)
        self.gate = nn.Linear(H, N * D, bias=False) if spec.attention_gate else None
        self.qk_norm = spec.qk_norm
        self.hands_on = hands_on
        if spec.qk_norm != "none":
            widths = (D, D) if spec.qk_norm == "head" else (N * D, G * D)
            self.query_norm, self.key_norm = (RMSNorm(width, eps=spec.rms_norm_eps) for width in widths)

    def forward(
        self,
        x_BSH: Tensor,
        rotation: Rotation,
        reach: Reach,
        slot: Slot | None = None,
        first: KeysAndValues | None = None,
    ) -> tuple[Tensor, KeysAndValues | None]:
        """The sublayer's update of normalised states, (B, S, H), and what its later visits read.

        Args:
            x_BSH: Normalised states.
            rotation: By position.
            reach: Who attends to whom.
            slot: Keys and values of earlier tokens, to be extended by these.
            first: Keys and values of the block's first visit, which are read instead of its own.
        """
        N, _, D, _ = self.sizes
        query = self.query(x_BSH)
        if self.qk_norm == "width":
            query = self.query_norm(query)
        q_BSND = query.unflatten(-1, (N, D))
        if self.qk_norm == "head":
            q_BSND = self.query_norm(q_BSND)
        q_BSND = rotation.turn(q_BSND)
        k_BPGD, v_BPGC = self._keys_and_values(x_BSH, rotation, slot) if first is None else first
        y_BSJ = attend(q_BSND, k_BPGD, v_BPGC, reach).flatten(2)
        if self.gate is not None:
            y_BSJ = y_BSJ * torch.sigmoid(self.gate(x_BSH))
        return self.output(y_BSJ), (k_BPGD, v_BPGC) if self.hands_on else None

    def _keys_and_values(self, x_BSH: Tensor, rotation: Rotation, slot: Slot | None) -> KeysAndValues:
        """Those of these tokens, after those of earlier ones."""
        _, G, D, C = self.sizes
        key = self.key(x_BSH)
        if self.qk_norm == "width":
            key = self.key_norm(key)
        k_BSGD, v_BSGC = key.unflatten(-1, (G, D)), self.value(x_BSH).unflatten(-1, (G, C))
        if self.qk_norm == "head":
            k_BSGD = self.key_norm(k_BSGD)
        k_BSGD = rotation.turn(k_BSGD)
        return (k_BSGD, v_BSGC) if slot is None else slot.append(k_BSGD, v_BSGC)


def attend(q_BSND: Tensor, k_BPGD: Tensor, v_BPGC: Tensor, reach: Reach) -> Tensor:
    """softmax(q·k / sqrt(D)) v within reach, as (B, S, N, C). Query head n reads key-value head n // (N/G)."""
    shared = bool(q_BSND.shape[2] != k_BPGD.shape[2])  # under torch.jit.trace, sizes are tensors
    if reach.lengths is not None:
        return _by_document(q_BSND, k_BPGD, v_BPGC, reach.lengths, shared)
    q, k, v = (heads.transpose(1, 2) for heads in (q_BSND, k_BPGD, v_BPGC))
    if reach.blocks is not None:
        found: Tensor = _flex()(q, k, v, block_mask=reach.blocks, enable_gqa=shared)
    else:
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=reach.mask, is_causal=reach.mask is None, enable_gqa=shared
        )
    return found.transpose(1, 2)


def _by_document(q_BSND: Tensor, k_BSGD: Tensor, v_BSGC: Tensor, lengths: tuple[int, ...], shared: bool) -> Tensor:
    """Each document by itself. Tokens are split before heads come first, so that the pieces stay views."""
    pieces = (heads.flatten(0, 1).split_with_sizes(lengths) for heads in (q_BSND, k_BSGD, v_BSGC))
    found = []
    for document in zip(*pieces, strict=True):
        q, k, v = (heads.transpose(0, 1)[None] for heads in document)
        y_1NtC = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        found.append(y_1NtC[0].transpose(0, 1))
    return torch.cat(found).view(*q_BSND.shape[:2], *found[0].shape[1:])


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _flex() -> Any:
    """FlexAttention: compiled by itself, or plain inside a graph that is being compiled anyway."""
    if torch.compiler.is_compiling():
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention
    return _compiled_flex()
