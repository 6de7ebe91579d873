"""The KV cache of a looped model: one slot for each visit.

Shapes: B rows, S new tokens, P tokens so far, G key-value heads, D head size, C size of a value head.

A block that is visited twice computes other keys and values at each visit, so a cache with one slot for each block
would not give the uncached model. Slots are what the KV budget counts (arXiv 2609.01343v3, Sec. 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smelt_match.errors import BadInput


@dataclass
class Slot:
    """Keys and values of one visit, preallocated."""

    keys_BPGD: Tensor
    values_BPGC: Tensor
    filled: int = 0

    def append(self, keys_BSGD: Tensor, values_BSGC: Tensor) -> tuple[Tensor, Tensor]:
        """Store new tokens; return the keys and values of all tokens so far."""
        end = self.filled + keys_BSGD.shape[1]
        self.keys_BPGD[:, self.filled : end] = keys_BSGD
        self.values_BPGC[:, self.filled : end] = values_BSGC
        self.filled = end
        return self.keys_BPGD[:, :end], self.values_BPGC[:, :end]


class KVCache:
    """Keys and values of every visit, for at most ``max_tokens`` tokens in each of ``batch_size`` rows.

    Args:
        heads: (n_kv, head size, size of a value head) of each visit, in order of execution.
        batch_size: B.
        max_tokens: Tokens of a row that fit.
        device: Where it lives.
        dtype: What it holds.
        policy: ``visit``, one slot for each visit. Others (last, shared, ring) cannot be built yet.
    """

    def __init__(
        self,
        heads: list[tuple[int, int, int]],
        batch_size: int,
        max_tokens: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        policy: str = "visit",
    ) -> None:
        if policy != "visit":
            raise BadInput(f"KV policy {policy!r} cannot be built yet", "`visit` keeps one slot for each visit")
        self.batch_size, self.max_tokens = batch_size, max_tokens

        def empty(groups: int, size: int) -> Tensor:
            return torch.empty(batch_size, max_tokens, groups, size, device=device, dtype=dtype)

        self.slots = [Slot(empty(groups, key), empty(groups, value)) for groups, key, value in heads]

    def __len__(self) -> int:
        """Slots."""
        return len(self.slots)

    @property
    def tokens(self) -> int:
        """Tokens of each row that are stored."""
        return self.slots[-1].filled

    @property
    def elements_per_token(self) -> int:
        """Elements that one token of one row takes up, over all slots: what the KV budget counts."""
        return sum(slot.keys_BPGD[0, 0].numel() + slot.values_BPGC[0, 0].numel() for slot in self.slots)

    def check(self, rows: int, tokens: int) -> None:
        """Refuse new tokens that do not fit."""
        if rows != self.batch_size:
            raise BadInput(f"the cache has {self.batch_size} rows, the tokens {rows}")
        if self.tokens + tokens > self.max_tokens:
            raise BadInput(f"the cache holds {self.max_tokens:,} tokens; {tokens:,} after {self.tokens:,} do not fit")
