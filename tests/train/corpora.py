"""Small corpora for tests."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from smelt_match.train.corpus.build import Recipe, build
from smelt_match.train.corpus.document import Document, Shares
from smelt_match.train.corpus.encoders import Bytes, Encoder
from smelt_match.train.manifest import Origin
from smelt_match.train.shards import Shards

QUARTERS = Shares(Fraction(1, 4), Fraction(1, 4))


class Given:
    """Documents that a test made up."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = list(documents)

    def read(self) -> list[Document]:
        return self.documents

    def unusable(self) -> int:
        return 0

    def skipped(self) -> list[str]:
        return []

    def provenance(self) -> list[Origin]:
        return [Origin(item="made up", origin="a test", licence="none", documents=len(self.documents))]


def texts(count: int, source: str = "s", category: str = "C", words: int = 12) -> list[Document]:
    """Documents of different words and lengths."""
    return [
        Document(source, category, " ".join(f"{source}{number}w{word}" for word in range(1 + number * 7 % words)))
        for number in range(count)
    ]


def corpus(
    folder: Path,
    documents: Iterable[Document],
    encoder: Encoder | None = None,
    near: Fraction | None = None,
    cap: int = 10**6,
    shares: Shares = QUARTERS,
) -> Shards:
    """A corpus of documents: a quarter for validation and a quarter for the branch pool."""
    recipe = Recipe(shares, cap, near)
    build(Given(documents), encoder or Bytes(), folder, recipe)
    return Shards.open(folder)


def alone(shards: Shards, split: str) -> list[list[int]]:
    """The documents of a split, each with its separator."""
    stream = getattr(shards, split)
    offsets = stream.offsets.tolist()
    return [stream.tokens_N[a:b].tolist() for a, b in pairwise(offsets)]
