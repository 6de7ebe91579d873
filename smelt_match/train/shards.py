"""A built corpus, opened for reading: one memory-mapped stream of tokens for each split.

Shapes: N tokens, D documents.

A document is stored as the separator ``eos_id`` and the tokens of its text. The separator begins the document, and is
what the last token of the document before it predicts: every token has a target, and none depends on another document.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smelt_match.errors import BadInput
from smelt_match.spec.model import ModelSpec
from smelt_match.train.manifest import PARTS, SPLITS, Manifest, Source, read_manifest, stream_file

CHUNK_BYTES = 2**24
QUICK_BYTES = 2**30  # read and hashed within seconds


@dataclass(frozen=True, eq=False)
class Stream:
    """The documents of a split, end to end.

    Attributes:
        name: ``trunk``, ``branch`` or ``validation``.
        tokens_N: Token ids, memory-mapped, unsigned.
        offsets: Where each document begins, and N at the end: int64, (D + 1,), strictly increasing.
        sources_D: Each document's index in `Shards.sources`, int32.
        eos_id: The separator, the first token of each document.
    """

    name: str
    tokens_N: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    sources_D: NDArray[np.int32]
    eos_id: int

    @property
    def num_tokens(self) -> int:
        """N, separators included."""
        return len(self.tokens_N)

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.sources_D)


@dataclass(frozen=True, eq=False)
class Shards:
    """A corpus folder, read-only.

    Training reads two pools of documents that share none: ``trunk`` for the constant stage of the schedule, ``branch``
    for its cosine branches, which all read it from its start (arXiv 2609.01343v3, Sec. 3.1: each branch trains on fresh
    data). In both, documents stand in the order of their hash, so that each stretch is a fair sample of the mixture; in
    ``validation`` they stand by source.

    Attributes:
        folder: Where it lies.
        manifest: What it says of itself, with counts by source and split.
        trunk, branch, validation: Its streams.
    """

    folder: Path
    manifest: Manifest
    trunk: Stream
    branch: Stream
    validation: Stream

    @classmethod
    def open(cls, folder: Path) -> Shards:
        """Open a corpus folder without reading its tokens.

        Raises:
            BadInput: It is no corpus, or a file is missing or has another size than the manifest says.
        """
        manifest = read_manifest(folder)
        _check_files(folder, manifest)
        return cls(folder, manifest, *(_stream(folder, manifest, name) for name in SPLITS))

    @property
    def vocab_size(self) -> int:
        """V: every id is below it; ``eos_id`` counts."""
        return self.manifest.vocab_size

    @property
    def eos_id(self) -> int:
        """The separator that begins each document."""
        return self.manifest.eos_id

    @property
    def digest(self) -> str:
        """The sha256 of all content, 64 hexadecimal digits: it fixes the mixture."""
        return self.manifest.digest

    @property
    def sources(self) -> tuple[Source, ...]:
        """Sources in the order of their ids, by name: each has a category and its counts."""
        return self.manifest.sources

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order of their ids, by name."""
        return tuple(sorted({source.category for source in self.sources}))

    def source_id(self, name: str) -> int:
        """The id of a source, as in `Stream.sources_D`."""
        for index, source in enumerate(self.sources):
            if source.name == name:
                return index
        raise BadInput(f"{self.folder}: has no source {name!r}", ", ".join(source.name for source in self.sources))

    def categories_of(self, sources_D: NDArray[np.int32]) -> NDArray[np.int32]:
        """The category ids of documents, given their source ids."""
        index = [self.categories.index(source.category) for source in self.sources]
        return np.array(index, np.int32)[sources_D]

    def verify_if_quick(self) -> None:
        """`verify` a corpus of at most 1 GiB, before it is trained on; of a larger one the sizes have been compared."""
        if sum(file.bytes for file in self.manifest.files.values()) <= QUICK_BYTES:
            self.verify()

    def verify(self) -> None:
        """Read everything and compare it with the digest; `BadInput` names each file that differs."""
        wrong = [name for name, file in self.manifest.files.items() if _sha256(self.folder / name) != file.sha256]
        if wrong:
            raise BadInput(
                "\n".join(f"{self.folder / name}: its sha256 is not the one in the manifest" for name in wrong),
                "the corpus was changed after it was built; build it again",
            )


def check_vocabulary(shards: Shards, spec: ModelSpec) -> int:
    """The vocabulary to build the model with: the spec's, or the corpus's where the spec states none.

    Raises:
        BadInput: The spec has fewer entries than the corpus has ids.
    """
    if spec.vocab_size is None:
        return shards.vocab_size
    if spec.vocab_size < shards.vocab_size:
        raise BadInput(
            f"{spec.name}: vocab_size {spec.vocab_size:,} is less than the {shards.vocab_size:,} ids of "
            f"{shards.folder}",
            "train a smaller tokenizer with: smelt-match corpus tokenizer --vocab-size N",
        )
    return spec.vocab_size


def _check_files(folder: Path, manifest: Manifest) -> None:
    wanted = [stream_file(split, part) for split in SPLITS for part in PARTS]
    faults = [f"{folder}: the manifest does not name {name}" for name in wanted if name not in manifest.files]
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{path}: is missing")
        elif path.stat().st_size != file.bytes:
            faults.append(f"{path}: has {path.stat().st_size:,} bytes, not {file.bytes:,}")
    if faults:
        raise BadInput("\n".join(faults), "the corpus is damaged; build it again")


def _stream(folder: Path, manifest: Manifest, split: str) -> Stream:
    tokens, offsets, sources = (
        _mapped(folder / stream_file(split, part), np.dtype(dtype or manifest.dtype).newbyteorder("<"))
        for part, dtype in PARTS.items()
    )
    if len(offsets) != len(sources) + 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise BadInput(f"{folder}: the documents of {split} do not fit its tokens", "build the corpus again")
    return Stream(split, tokens, offsets, sources, manifest.eos_id)


def _mapped(path: Path, dtype: np.dtype) -> NDArray:  # type: ignore[type-arg]
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise BadInput(f"{path}: {size:,} bytes are no whole number of {dtype.name}", "build the corpus again")
    if not size:  # nothing can be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
