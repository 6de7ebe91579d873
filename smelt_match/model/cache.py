"""The KV cache of a looped model: one slot for each visit, or fewer, as the loop's KV policy says.

Shapes: B rows, S new tokens, P tokens so far, G key-value heads, D head size, C size of a value head.

A block that is visited twice computes other keys and values at each visit, so a cache with one slot for each block
would not give the uncached model. Slots are what the KV budget counts (arXiv 2609.01343v3, Sec. 3.2).

``visit`` has a slot for each visit, and decodes the uncached model. ``shared`` has one for each block: later visits
read the keys and values of the first, with a cache and without, so that it too decodes the uncached model
(Mixture-of-Recursions, arXiv 2507.10524). ``last`` and ``ring`` only keep less while decoding: visit v of a block
(from 0) uses its slot v mod k, where k is 1 or the ring's length, so that earlier tokens are read as the last visit of
that slot wrote them, and those of the same pass as the visit itself computes them. What comes in one pass therefore
equals the uncached model; what is decoded after it does not, wherever a block has more visits than slots (Ouro, arXiv
2510.25741, decodes with ``last``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.spec.loop import Loop

KeysAndValues = tuple[Tensor, Tensor]


@dataclass
class Slot:
    """Keys and values of one visit, or of the last one that stored some, preallocated."""

    keys_BPGD: Tensor
    values_BPGC: Tensor
    filled: int = 0

    def append(self, keys_BSGD: Tensor, values_BSGC: Tensor) -> KeysAndValues:
        """Store new tokens; return the keys and values of all tokens so far."""
        end = self.filled + keys_BSGD.shape[1]
        self.keys_BPGD[:, self.filled : end] = keys_BSGD
        self.values_BPGC[:, self.filled : end] = values_BSGC
        self.filled = end
        return self.keys_BPGD[:, :end], self.values_BPGC[:, :end]


def slots_of(visits: Sequence[int], loop: Loop) -> list[int]:
    """The slot of each visit: visit v of a block uses its slot v mod k. Slots are numbered by first use.

    Args:
        visits: The block of each visit, in order of execution.
        loop: Says how many slots k a block has.
    """
    counts, seen = Counter(visits), Counter[int]()
    found: dict[tuple[int, int], int] = {}
    slots = []
    for block in visits:
        place = (block, seen[block] % loop.slots(counts[block]))
        seen[block] += 1
        slots.append(found.setdefault(place, len(found)))
    return slots


class KVCache:
    """Keys and values of earlier tokens, for at most ``max_tokens`` tokens in each of ``batch_size`` rows.

    Args:
        heads: (n_kv, head size, size of a value head) of each visit, in order of execution.
        batch_size: B.
        max_tokens: Tokens of a row that fit.
        device: Where it lives.
        dtype: What it holds.
        places: The slot of each visit (`slots_of`); None for one each.
    """

    def __init__(
        self,
        heads: list[tuple[int, int, int]],
        batch_size: int,
        max_tokens: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        self.batch_size, self.max_tokens = batch_size, max_tokens

        def empty(groups: int, size: int) -> Tensor:
            return torch.empty(batch_size, max_tokens, groups, size, device=device, dtype=dtype)

        self.places = tuple(range(len(heads)) if places is None else places)
        sizes = dict(zip(self.places, heads, strict=True))
        self.slots = [
            Slot(empty(groups, key), empty(groups, value)) for _, (groups, key, value) in sorted(sizes.items())
        ]

    def slot(self, visit: int, past: int) -> Slot:
        """The slot of a visit, at the end of ``past`` tokens: what a visit before it stored of this pass is dropped."""
        found = self.slots[self.places[visit]]
        found.filled = past
        return found

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
