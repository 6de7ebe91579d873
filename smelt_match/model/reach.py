"""What each token may attend to, and its position: one decision for a forward pass, shared by every visit.

Shapes: B rows, S tokens in a row, P tokens that can be attended to (cached ones first), T = B·S.

A document is a maximal run of equal segment ids in a row. Tokens attend to themselves and to what precedes them in
their document (arXiv 2609.01343v3, Sec. 3.1: segment-level attention masks), and positions restart with each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smelt_match.errors import BadInput


@dataclass(frozen=True)
class Reach:
    """Who attends to whom. At most one of ``mask``, ``lengths`` and ``blocks`` is set; with none, rows are causal.

    Attributes:
        positions: (S,) or (B, S), int64.
        mask: (S, P) or (B, 1, S, P), true where attention is allowed.
        lengths: Tokens of each document, over the rows laid end to end.
        blocks: A block mask of FlexAttention.
    """

    positions: Tensor
    mask: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    blocks: Any = None


def rows(tokens: int, past: int, device: torch.device) -> Reach:
    """Whole rows of one document each, after ``past`` tokens that are already in the cache."""
    positions = torch.arange(past, past + tokens, device=device)
    if past == 0:
        return Reach(positions)
    mask = torch.ones(tokens, past + tokens, dtype=torch.bool, device=device).tril(past)
    return Reach(positions, mask=mask)


def packed(segment_ids_BS: Tensor, compiled: bool = False) -> Reach:
    """Rows of several documents; ``compiled`` says that blocks are, where this runs outside of their graphs.

    On a GPU a block mask skips what lies outside a document. On a CPU each document is attended to by itself, which
    costs the sum of squared lengths instead of S² (measured at S = 4,096 with ten documents: 9 times faster than a
    mask); where a graph is compiled, lengths would be data-dependent shapes, each with a graph of its own, and a mask
    takes their place.
    """
    if segment_ids_BS.is_floating_point() or segment_ids_BS.dim() != 2:
        found = f"{segment_ids_BS.dtype} {tuple(segment_ids_BS.shape)}"
        raise BadInput(f"segment_ids: integers of shape (rows, tokens) are wanted, found {found}")
    index = torch.arange(segment_ids_BS.shape[1], device=segment_ids_BS.device)
    first = torch.ones_like(segment_ids_BS, dtype=torch.bool)
    first[:, 1:] = segment_ids_BS[:, 1:] != segment_ids_BS[:, :-1]
    positions = index - torch.where(first, index, 0).cummax(dim=1).values
    if segment_ids_BS.device.type == "cuda":
        return Reach(positions, blocks=_block_mask(first.cumsum(dim=1)))
    if compiled or torch.compiler.is_compiling():
        document = first.cumsum(dim=1)
        same = document[:, None, :, None] == document[:, None, None, :]
        return Reach(positions, mask=same & (index[:, None] >= index))
    starts = first.flatten().nonzero().flatten().tolist()
    if len(starts) == len(segment_ids_BS):  # one document a row
        return Reach(positions)
    ends = [*starts[1:], first.numel()]
    return Reach(positions, lengths=tuple(end - start for start, end in zip(starts, ends, strict=True)))


def _block_mask(document_BS: Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def allowed(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (document_BS[row, query] == document_BS[row, key]) & (query >= key)

    rows, tokens = document_BS.shape
    return create_block_mask(allowed, rows, None, tokens, tokens, device=str(document_BS.device))
