"""A document, what makes two of them the same, and which split one belongs to."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["trunk", "branch", "validation"]
MAX_NAME = 100


@dataclass(frozen=True, eq=False)
class Document:
    """A text, or the tokens of one, with its source and that source's category."""

    source: str
    category: str
    text: str = ""
    tokens: NDArray[np.integer] | None = None

    @property
    def key(self) -> bytes:
        """A sha256 that documents share if they are the same but for case, Unicode form (NFKC) and white space.

        The tokens' own where there is no text.
        """
        if self.tokens is not None:
            return hashlib.sha256(np.ascontiguousarray(self.tokens, "<i8").tobytes()).digest()
        text = " ".join(unicodedata.normalize("NFKC", self.text).casefold().split())
        return hashlib.sha256(text.encode()).digest()

    @property
    def words(self) -> list[str]:
        """What near duplicates share: words without case and punctuation, or tokens."""
        if self.tokens is not None:
            return list(map(str, self.tokens.tolist()))
        return re.findall(r"\w+", self.text.casefold()) or [self.text]


@dataclass(frozen=True)
class Shares:
    """Shares of documents, by their key: the rest is the trunk."""

    validation: Fraction
    branch: Fraction

    def split(self, key: bytes) -> Split:
        """Where a document belongs: a function of its text alone, so that its copies belong there too."""
        place = Fraction(position(key), 2**64)
        if place < self.validation:
            return "validation"
        return "branch" if place < self.validation + self.branch else "trunk"


def position(key: bytes) -> int:
    """A document's place in the order of its split, below 2^64."""
    return int.from_bytes(key[:8], "big")


def name_fault(what: str, name: object) -> str:
    """Why ``name`` cannot name a source or category, or an empty text."""
    if not isinstance(name, str):
        return f"{what} is no text"
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        return f"{what} {name[:40]!r} is no name of 1 to {MAX_NAME} printable characters"
    return ""
