"""Streams on disk: documents in reading order first, then each split in its own order."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import BadInput
from smelt_match.train.corpus.document import Document, Split, position
from smelt_match.train.manifest import PARTS, SPLITS, Count, File, stream_file

SCRATCH = "scratch.bin"


class Ledger:
    """The documents of a corpus as they were read: tokens in a scratch file, the rest in memory (40 bytes each)."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype = folder, np.dtype(dtype).newbyteorder("<")
        self.names: dict[str, tuple[int, str]] = {}  # source: number by appearance, category
        self.keys, self.starts, self.lengths = array("Q"), array("Q"), array("Q")
        self.sources, self.sizes, self.splits = array("I"), array("q"), array("B")
        self._stream: BinaryIO = (folder / SCRATCH).open("wb")
        self._end = 0

    def add(self, document: Document, key: bytes, split: Split, tokens: NDArray[np.integer]) -> None:
        """Write a document's tokens down.

        Raises:
            BadInput: Its source appeared before with another category.
        """
        number, category = self.names.setdefault(document.source, (len(self.names), document.category))
        if category != document.category:
            raise BadInput(
                f"source {document.source!r} has the category {category!r} and the category {document.category!r}",
                "a source has one category: name them apart",
            )
        self._stream.write(tokens.astype(self.dtype).tobytes())
        self.keys.append(position(key))
        self.starts.append(self._end)
        self.lengths.append(len(tokens))
        self.sources.append(number)
        self.sizes.append(-1 if document.tokens is not None else len(document.text.encode()))
        self.splits.append(SPLITS.index(split))
        self._end += len(tokens)

    def close(self) -> None:
        """End the scratch file."""
        self._stream.close()


class Streams:
    """Writes a ledger's splits: trunk and branch in the order of keys, validation by source and then by key.

    Attributes:
        sources: Names and categories in the order of their ids, by name.
        counts: For each source, what each split holds.
        files: What was written.
        over_cap: Validation documents left out.
    """

    def __init__(self, ledger: Ledger, eos_id: int, max_validation_tokens: int) -> None:
        self._ledger, self._eos_id, self._cap = ledger, eos_id, max_validation_tokens
        self.sources = sorted((name, category) for name, (_, category) in ledger.names.items())
        ids = {name: index for index, (name, _) in enumerate(self.sources)}
        self._ids = np.array([ids[name] for name in ledger.names], np.int32)[np.array(ledger.sources, np.int64)]
        self._lengths = np.array(ledger.lengths, np.int64) + 1  # the separator
        self._sizes = np.array(ledger.sizes, np.int64)
        self.counts: list[dict[str, Count]] = [{} for _ in self.sources]
        self.files: dict[str, File] = {}
        self.over_cap = 0

    def write(self) -> None:
        """Write every split and remove the scratch file."""
        path = self._ledger.folder / SCRATCH
        empty = path.stat().st_size == 0
        tokens = np.empty(0, self._ledger.dtype) if empty else np.memmap(path, self._ledger.dtype, mode="r")
        splits, keys = np.array(self._ledger.splits, np.uint8), np.array(self._ledger.keys, np.uint64)
        for index, split in enumerate(SPLITS):
            chosen = np.flatnonzero(splits == index)
            if split == "validation":
                chosen = self._capped(chosen[np.lexsort((keys[chosen], self._ids[chosen]))])
            else:
                chosen = chosen[np.argsort(keys[chosen], kind="stable")]
            self._write_split(split, chosen, tokens)
            for source, counts in enumerate(self.counts):
                counts[split] = self._count(chosen[self._ids[chosen] == source])
        del tokens
        path.unlink()

    def _capped(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each source the documents, in order, that fit into what is left of its cap."""
        left = [self._cap] * len(self.sources)  # plain integers, which no cap overflows
        kept = []
        for document in chosen.tolist():
            source, length = self._ids[document], int(self._lengths[document])
            if length <= left[source]:
                left[source] -= length
                kept.append(document)
        self.over_cap = len(chosen) - len(kept)
        return np.array(kept, np.int64)

    def _count(self, chosen: NDArray[np.int64]) -> Count:
        sizes = self._sizes[chosen]
        known = None if (sizes < 0).any() else int(sizes.sum())
        return Count(documents=len(chosen), tokens=int(self._lengths[chosen].sum()), bytes=known)

    def _write_split(self, split: str, chosen: NDArray[np.int64], tokens: NDArray[np.integer]) -> None:
        separator = np.array([self._eos_id], tokens.dtype).tobytes()
        starts, lengths = np.array(self._ledger.starts, np.int64)[chosen], self._lengths[chosen] - 1
        with _File(self._ledger.folder / stream_file(split, "tokens")) as out:
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                out.write(separator + tokens[start : start + length].tobytes())
        self.files[stream_file(split, "tokens")] = out.record
        values: dict[str, NDArray[np.integer]] = {
            "offsets": np.concatenate([[0], np.cumsum(lengths + 1)]),
            "sources": self._ids[chosen],
        }
        for part, value in values.items():
            with _File(self._ledger.folder / stream_file(split, part)) as out:
                out.write(value.astype(np.dtype(PARTS[part]).newbyteorder("<")).tobytes())
            self.files[stream_file(split, part)] = out.record


class _File:
    """A file that is hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self._stream, self._hash, self._size = path.open("wb"), hashlib.sha256(), 0

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._hash.update(data)
        self._size += len(data)

    @property
    def record(self) -> File:
        """Its size and hash."""
        return File(bytes=self._size, sha256=self._hash.hexdigest())


def write_text(folder: Path, name: str, text: str) -> File:
    """A small file beside the streams."""
    with _File(folder / name) as out:
        out.write(text.encode())
    return out.record
