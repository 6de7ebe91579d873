"""Validation loss by source, over the same held-out tokens each time.

Token-weighted cross-entropy is the paper's measure (arXiv 2609.01343v3, Sec. 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from smelt_match.spec.parts import Record
from smelt_match.train.batches import Batch, validation
from smelt_match.train.config import TrainConfig
from smelt_match.train.engine import Engine
from smelt_match.train.manifest import Source
from smelt_match.train.shards import Shards


class SourceLoss(Record):
    """Validation tokens of a source.

    Attributes:
        name, category: The source's.
        tokens: Predicted tokens, each document's end included.
        nats: Their summed cross-entropy.
        bytes: UTF-8 bytes of their text, or None where they are unknown: of a source that was read in part, its bytes
            in proportion to the tokens.
    """

    name: str
    category: str
    tokens: int
    nats: float
    bytes: float | None = None


class Validation(Record):
    """Validation losses, by source."""

    sources: tuple[SourceLoss, ...]

    def loss(self, category: str | None = None) -> float:
        """Token-weighted mean cross-entropy in nats, of all sources or of a category's."""
        sources = [source for source in self.sources if category in (None, source.category)]
        return sum(source.nats for source in sources) / sum(source.tokens for source in sources)

    @property
    def loss_mean_sources(self) -> float:
        """The mean over sources of their mean cross-entropy in nats."""
        return sum(source.nats / source.tokens for source in self.sources) / len(self.sources)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits for each byte of text, comparable over tokenizers; None unless every source's bytes are known."""
        known = [source.bytes for source in self.sources if source.bytes]
        if len(known) < len(self.sources):
            return None
        return sum(source.nats for source in self.sources) / math.log(2) / sum(known)

    @property
    def categories(self) -> tuple[str, ...]:
        """By name."""
        return tuple(sorted({source.category for source in self.sources}))


@torch.no_grad()
def validate(engine: Engine, shards: Shards) -> Validation:
    """Validation losses of a model, over all ranks.

    Every rank takes part in every forward pass, since weights may be sharded: the batches are dealt out in turn, and
    ranks that get none in the last round compute a batch that does not count.
    """
    engine.model.eval()
    world, config = engine.world, engine.config
    sources = [source for source in shards.sources if source.validation.tokens]
    batches = [
        (index, batch)
        for index, source in enumerate(sources)
        for batch in _first(validation(shards, source.name, config.micro_rows, config.context), config)
    ]
    sums = torch.zeros(len(sources), 2, dtype=torch.float64, device=world.device)
    for index, batch, counts in _dealt(batches, world.rank, world.size):
        nats, _ = engine.forward(batch)
        if counts:
            sums[index, 0] += nats
            sums[index, 1] += batch.num_targets
    found = world.total(sums).tolist()
    return Validation(
        sources=tuple(_loss(source, int(tokens), nats) for source, (nats, tokens) in zip(sources, found, strict=True))
    )


def _loss(source: Source, tokens: int, nats: float) -> SourceLoss:
    held = source.validation
    known = None if held.bytes is None else held.bytes * tokens / held.tokens
    return SourceLoss(name=source.name, category=source.category, tokens=tokens, nats=nats, bytes=known)


def _first(batches: Iterator[Batch], config: TrainConfig) -> Iterator[Batch]:
    """Whole contexts up to the most tokens that a source may have, and at least one."""
    rows = max(1, config.validation_tokens // config.context)
    for batch in batches:
        yield batch.rows(0, rows)
        rows -= len(batch.tokens_BS)
        if rows <= 0:
            return


def _dealt(batches: list[tuple[int, Batch]], rank: int, size: int) -> Iterator[tuple[int, Batch, bool]]:
    for start in range(0, len(batches), size):
        mine = start + rank
        index, batch = batches[min(mine, len(batches) - 1)]
        yield index, batch, mine < len(batches)
