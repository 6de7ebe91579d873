"""A layout: which block runs when. Every budget is a fold over this list.

A *block* has weights; a *visit* is one execution of a block. An unlooped model visits each block once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from smelt_match.errors import BadInput

MAX_LAYERS = 10_000
MAX_VISITS = 100_000


@dataclass(frozen=True)
class Layout:
    """The visits of a model's blocks, in order.

    Attributes:
        num_layers: L, the number of physical blocks.
        visits: Block indices from 0, in execution order; every block occurs at least once.
        text: The spelling it was read from. Two layouts with the same visits are equal whatever their text.
    """

    num_layers: int
    visits: tuple[int, ...]
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.num_layers <= MAX_LAYERS:
            raise BadInput(f"layout: {self.num_layers} layers; between 1 and {MAX_LAYERS:,} are possible")
        if len(self.visits) > MAX_VISITS:
            raise BadInput(f"layout: {len(self.visits):,} visits; at most {MAX_VISITS:,} are possible")
        seen = set(self.visits)
        outside = sorted(index for index in seen if not 0 <= index < self.num_layers)
        if outside:
            raise BadInput(f"layout: layer {outside[0] + 1} does not exist; there are {self.num_layers}")
        missing = next((index for index in range(self.num_layers) if index not in seen), None)
        if missing is not None:
            raise BadInput(
                f"layout: layer {missing + 1} is never visited",
                "a block that is stored must also be executed",
            )

    @property
    def counts(self) -> tuple[int, ...]:
        """Visits of each block, by block index."""
        tally = Counter(self.visits)
        return tuple(tally[index] for index in range(self.num_layers))

    @property
    def is_unlooped(self) -> bool:
        """Whether every block is visited exactly once, in order."""
        return self.visits == tuple(range(self.num_layers))

    @property
    def canonical(self) -> str:
        """The flat visit list with layers from 1, in runs: ``visits 1-9,4-12``. The grammar reads it back."""
        return "visits " + ",".join(_span(run) for run in _ascending_runs(self.visits))

    @property
    def loop(self) -> tuple[int, ...]:
        """The blocks that are visited more than once, by block index."""
        return tuple(index for index, count in enumerate(self.counts) if count > 1)

    @property
    def cycle(self) -> tuple[int, int, int, int] | None:
        """(layers before, inside and after the loop, passes) where one run of layers is repeated as a whole."""
        looped = self.loop
        if not looped:
            return None
        before, inside, after = looped[0], len(looped), self.num_layers - looped[-1] - 1
        passes = self.counts[before]
        return (before, inside, after, passes) if self.visits == _cycled(before, inside, after, passes) else None

    def with_passes(self, passes: int) -> Layout:
        """The same layout with another number of passes through its loop."""
        if self.cycle is None:
            raise BadInput(f"layout {self}: has not just one loop, so that its passes cannot be changed")
        before, inside, after, _ = self.cycle
        return Layout(self.num_layers, _cycled(before, inside, after, passes))

    def groups(self) -> list[tuple[tuple[int, ...], int]]:
        """Blocks that share a visit count, as (block indices, visits of each), in order of first block."""
        counts = self.counts
        order = sorted(range(self.num_layers), key=lambda index: counts[index])
        groups = [(tuple(blocks), count) for count, blocks in groupby(order, key=lambda index: counts[index])]
        return sorted(groups)

    def __str__(self) -> str:
        return self.text or self.canonical


def _cycled(before: int, inside: int, after: int, passes: int) -> tuple[int, ...]:
    if before + inside * passes + after > MAX_VISITS:
        raise BadInput(f"layout: {passes:,} passes; at most {MAX_VISITS:,} visits are possible")
    body = tuple(range(before, before + inside)) * passes
    return (*range(before), *body, *range(before + inside, before + inside + after))


def _ascending_runs(visits: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = visits[0]
    for index in visits[1:]:
        if index != previous + 1:
            yield start, previous
            start = index
        previous = index
    yield start, previous


def _span(run: tuple[int, int]) -> str:
    first, last = run
    return f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"


def parse_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Layer numbers from 1 in runs, such as ``1-3,10``, as ascending block indices; `ValueError` says what is wrong."""
    found: set[int] = set()
    for run in text.split(","):
        first, _, last = run.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not last)) or len(run) > 20:
            raise ValueError(f"{run.strip()[:40]!r} is not a layer or a run of layers such as 1-3")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high <= num_layers:
            raise ValueError(f"layers {run.strip()} do not lie within 1 to {num_layers}")
        found.update(range(low - 1, high))
    return tuple(sorted(found))


def block_names(blocks: Sequence[int]) -> str:
    """Block indices as layer numbers from 1, in runs: ``1-3,10-12``."""
    return ",".join(_span(run) for run in _ascending_runs(blocks))
