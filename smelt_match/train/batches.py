"""Batches as a pure function of (pool, seed, step): packed contexts in an order that a seed fixes.

Shapes: B rows, S tokens of a context, N tokens of a pool.

A pool is cut into contexts of S tokens, one after the other; the last N mod S tokens are left out. A document that is
longer than what is left of its context goes on in the next one, where its rest is a segment of its own that does not
see its beginning. A step takes the next B contexts in the seed's order. Ranks, workers, restarts and arms do not enter:
two runs with the same corpus, seed, batch and context see the same tokens at the same step, and no token twice before
the pool ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import BadInput
from smelt_match.train.shards import Shards, Stream

IGNORE = -100  # torch's default for targets that do not count


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of packed documents.

    Attributes:
        tokens_BS: Inputs, int64.
        segment_ids_BS: The document of each token, counted from 0 in its row: int32, not decreasing.
        targets_BS: The next token of the same document, int64; after its last token, the separator ``eos_id``. In
            training batches every token has a target; padding, which only validation has, has `IGNORE`.
    """

    tokens_BS: NDArray[np.int64]
    segment_ids_BS: NDArray[np.int32]
    targets_BS: NDArray[np.int64]

    @property
    def digest(self) -> str:
        """The sha256 of the tokens as little-endian int64, row by row."""
        return hashlib.sha256(np.ascontiguousarray(self.tokens_BS, "<i8").tobytes()).hexdigest()

    @property
    def num_targets(self) -> int:
        """Tokens that count in the loss."""
        return int(np.count_nonzero(self.targets_BS != IGNORE))

    def rows(self, start: int, stop: int) -> Batch:
        """Some rows, for accumulation in smaller pieces."""
        part = slice(start, stop)
        return Batch(self.tokens_BS[part], self.segment_ids_BS[part], self.targets_BS[part])


def num_contexts(pool: Stream, context: int) -> int:
    """Whole contexts of S tokens in a pool."""
    if context < 1:
        raise BadInput(f"a context of {context} tokens: must be at least 1")
    return pool.num_tokens // context


def tokens_available(pool: Stream, context: int) -> int:
    """Tokens that a run can see once: the pool's, in whole contexts of S tokens."""
    return num_contexts(pool, context) * context


def check_fresh(pool: Stream, tokens: int, context: int, option: str = "--tokens") -> None:
    """Refuse, before it starts, a run that would have to see tokens twice. ``option`` asks for them.

    Raises:
        BadInput: With the numbers: tokens asked for, tokens there.
    """
    available = tokens_available(pool, context)
    if tokens > available:
        raise BadInput(
            f"{pool.name}: {tokens:,} tokens are asked for, and the corpus has {available:,} in whole contexts of "
            f"{context:,}: an epoch would begin again",
            f"ask for fewer {option}, " * bool(available)
            + "train without branches, " * (pool.name == "branch")
            + "or build a larger corpus",
        )


def context_indices(pool: Stream, seed: int, step: int, rows: int, context: int) -> NDArray[np.int64]:
    """Which contexts of a pool a step takes: B indices; context i holds the tokens from i·S on.

    Steps count from 0, in each pool. Steps share no index.

    Raises:
        BadInput: The pool ends before this step does.
    """
    if not 0 <= seed < 2**63:
        raise BadInput(f"seed {seed}: must be between 0 and 2^63 - 1")
    if rows < 1 or step < 0:
        raise BadInput(f"step {step} with {rows} rows: steps count from 0, and a batch has at least one row")
    check_fresh(pool, (step + 1) * rows * context, context)
    return _order(num_contexts(pool, context), seed, pool.name)[step * rows : (step + 1) * rows]


def batch(pool: Stream, seed: int, step: int, rows: int, context: int, rank: int = 0, world_size: int = 1) -> Batch:
    """The batch of a step, or a rank's rows of it.

    Args:
        pool: `Shards.trunk` or `Shards.branch`.
        seed: Fixes the order.
        step: Counts from 0 in the pool: a branch starts at 0 wherever it forked.
        rows: B, of the global batch, over all ranks.
        context: S.
        rank, world_size: A rank has B/world_size consecutive rows, so that ranks in order are the global batch.

    Raises:
        BadInput: The pool ends before this step does, or the ranks do not divide the rows.
    """
    if world_size < 1 or rows % world_size or not 0 <= rank < world_size:
        raise BadInput(
            f"a batch of {rows} rows cannot be shared by {world_size} ranks (rank {rank}): choose a multiple"
        )
    share = rows // world_size
    indices = context_indices(pool, seed, step, rows, context)[rank * share : (rank + 1) * share]
    return _stack([_row(pool, start, start + context, context) for start in (indices * context).tolist()])


def num_validation_contexts(shards: Shards, source: str, context: int) -> int:
    """Rows that `validation` yields for a source."""
    start, stop = _source_span(shards, source)
    return -(-(stop - start) // context)


def validation(shards: Shards, source: str, rows: int, context: int) -> Iterator[Batch]:
    """Every validation token of a source once, in fixed order, in batches of at most B rows.

    A source's documents are packed by themselves. The last row is filled up with separators in a segment of their own,
    whose targets are `IGNORE`.
    """
    start, stop = _source_span(shards, source)
    spans = [(first, min(first + context, stop)) for first in range(start, stop, context)]
    for index in range(0, len(spans), rows):
        yield _stack([_row(shards.validation, *span, context) for span in spans[index : index + rows]])


def _source_span(shards: Shards, source: str) -> tuple[int, int]:
    """Where the validation tokens of a source lie: its documents stand together."""
    stream, index = shards.validation, shards.source_id(source)
    first, last = np.searchsorted(stream.sources_D, [index, index + 1])
    return int(stream.offsets[first]), int(stream.offsets[last])


@lru_cache(maxsize=8)
def _order(count: int, seed: int, name: str) -> NDArray[np.int64]:
    """The seed's permutation of a pool's contexts.

    Raw bits sorted, since numpy promises the bits of a generator forever, but not those of its permutations (NEP 19).
    """
    pool = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    order = np.argsort(np.random.Philox(key=seed + (pool << 64)).random_raw(count), kind="stable")
    order.flags.writeable = False
    return order


def _row(stream: Stream, start: int, stop: int, context: int) -> Batch:
    """Tokens start to stop of a stream as one row of S tokens."""
    length = stop - start
    read = stream.tokens_N[start : stop + 1].astype(np.int64)  # one more: the last target
    inputs = np.full(context, stream.eos_id, np.int64)
    targets = np.full(context, IGNORE, np.int64)
    inputs[:length] = read[:length]
    targets[: len(read) - 1] = read[1:]
    if stop == stream.num_tokens:
        targets[length - 1] = stream.eos_id
    begins = np.zeros(context, np.int32)
    first, last = np.searchsorted(stream.offsets, [start + 1, stop])
    begins[stream.offsets[first:last] - start] = 1
    begins[length : length + 1] = 1  # padding
    return Batch(inputs[None], np.cumsum(begins, dtype=np.int32)[None], targets[None])


def _stack(rows: list[Batch]) -> Batch:
    return Batch(
        np.concatenate([row.tokens_BS for row in rows]),
        np.concatenate([row.segment_ids_BS for row in rows]),
        np.concatenate([row.targets_BS for row in rows]),
    )
