"""From documents to a corpus folder, which appears whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path

from smelt_match.errors import BadInput
from smelt_match.files import explained
from smelt_match.folders import new_folder
from smelt_match.train.corpus.document import Document, Shares, Split
from smelt_match.train.corpus.encoders import Encoder
from smelt_match.train.corpus.inputs import Reading
from smelt_match.train.corpus.near import NearIndex
from smelt_match.train.corpus.writer import Ledger, Streams, write_text
from smelt_match.train.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    TOKENIZER,
    Manifest,
    Removed,
    Settings,
    Source,
    content_digest,
)
from smelt_match.units import fraction_text

# What a build writes, and nothing else: --force never removes a folder that holds other files.
OURS = re.compile(r"corpus\.json|tokenizer\.json|(trunk|branch|validation)\.(tokens|offsets|sources)\.bin")
MAX_SOURCES = 10_000
TOGETHER = 256  # documents that are encoded at once


@dataclass(frozen=True)
class Recipe:
    """How documents become a corpus.

    Attributes:
        shares: Of documents in validation and branch pool.
        max_validation_tokens: The most validation tokens of a source.
        near: The similarity at which a training document counts as a copy of a validation document, or None to keep
            them all.
    """

    shares: Shares = field(default_factory=lambda: Shares(Fraction(1, 20), Fraction(2, 25)))
    max_validation_tokens: int = 100_000
    near: Fraction | None = Fraction(4, 5)


def build(
    reading: Reading,
    encoder: Encoder,
    folder: Path,
    recipe: Recipe,
    force: bool = False,
    progress: Callable[[str, int], None] = lambda *_: None,
) -> Manifest:
    """Build a corpus folder.

    Documents are read twice: for the validation documents, which near duplicates are measured against, and for all.
    The same documents in another order give the same corpus, except where copies of a text have different sources or
    spacing: the first stays.

    Args:
        reading: Yields the same documents each time.
        encoder: What makes tokens of them.
        folder: The folder to make.
        recipe: Shares, cap and threshold.
        force: Whether to replace an earlier corpus.
        progress: Told what is done, and documents so far.

    Raises:
        BadInput: No document is left for training, an input cannot be read, or the folder cannot be written.
        MissingExtra: An input, the encoder or the threshold needs a library that is not installed.
    """
    near = None if recipe.near is None else NearIndex(float(recipe.near))
    with new_folder(folder, force, OURS) as scratch:
        if near is not None:
            _index(reading, near, recipe.shares, progress)
        sieve = _Sieve(recipe.shares, near)
        with explained(folder, "write there"):
            ledger = Ledger(scratch, "uint16" if encoder.vocab_size <= 2**16 else "uint32")
        try:
            _fill(sieve.kept(_told(reading.read(), "reading", progress)), encoder, ledger, sieve, folder)
        finally:
            with explained(folder, "write there"):
                ledger.close()
        with explained(folder, "write there"):
            manifest = _finish(ledger, encoder, recipe, sieve, near, reading)
            write_text(scratch, MANIFEST, manifest.to_json())
    return manifest


def _told(documents: Iterable[Document], doing: str, progress: Callable[[str, int], None]) -> Iterator[Document]:
    for number, document in enumerate(documents):
        progress(doing, number)
        yield document


def _index(reading: Reading, near: NearIndex, shares: Shares, progress: Callable[[str, int], None]) -> None:
    """Remember each validation document."""
    seen: set[bytes] = set()
    for document in _told(reading.read(), "indexing", progress):
        key = document.key
        if shares.split(key) == "validation" and key[:16] not in seen:
            seen.add(key[:16])
            near.add(document)


@dataclass
class _Sieve:
    """Lets each text through once, and no training document that is near a validation document."""

    shares: Shares
    near: NearIndex | None
    empty: int = 0
    exact: int = 0
    similar: int = 0

    def kept(self, documents: Iterable[Document]) -> Iterator[tuple[Document, bytes, Split]]:
        seen: set[bytes] = set()
        for document in documents:
            if document.tokens is None and not document.text.strip():
                self.empty += 1
                continue
            key = document.key
            if key[:16] in seen:
                self.exact += 1
                continue
            seen.add(key[:16])
            split = self.shares.split(key)
            if split != "validation" and self.near is not None and self.near.has_near(document):
                self.similar += 1
                continue
            yield document, key, split


def _fill(
    kept: Iterator[tuple[Document, bytes, Split]], encoder: Encoder, ledger: Ledger, sieve: _Sieve, folder: Path
) -> None:
    while group := list(islice(kept, TOGETHER)):
        found = encoder.encode([document for document, *_ in group])
        with explained(folder, "write there"):
            for (document, key, split), tokens in zip(group, found, strict=True):
                if not len(tokens):
                    sieve.empty += 1
                    continue
                if (tokens == encoder.eos_id).any():
                    raise BadInput(
                        f"source {document.source!r}: a document holds the separator, id {encoder.eos_id}",
                        "name another token of the tokenizer with --eos",
                    )
                ledger.add(document, key, split, tokens)
        if len(ledger.names) > MAX_SOURCES:
            raise BadInput(
                f"the documents name more than {MAX_SOURCES:,} sources",
                "choose a coarser --source-field, or name one source before the path: Web/mine=PATH",
            )


def _finish(
    ledger: Ledger,
    encoder: Encoder,
    recipe: Recipe,
    sieve: _Sieve,
    near: NearIndex | None,
    reading: Reading,
) -> Manifest:
    streams = Streams(ledger, encoder.eos_id, recipe.max_validation_tokens)
    streams.write()
    if not sum(counts["trunk"].documents for counts in streams.counts):
        raise BadInput("no document is left for training", "the corpus is empty: check the inputs and the shares")
    files = dict(streams.files)
    if encoder.text is not None:
        files[TOKENIZER] = write_text(ledger.folder, TOKENIZER, encoder.text)
    dtype = ledger.dtype.name
    digest = content_digest(
        encoder.vocab_size, encoder.eos_id, dtype, streams.sources, {name: file.sha256 for name, file in files.items()}
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        digest=digest,
        vocab_size=encoder.vocab_size,
        eos_id=encoder.eos_id,
        dtype="uint16" if dtype == "uint16" else "uint32",
        tokenizer=encoder.record,
        sources=tuple(
            Source(name=name, category=category, **counts)
            for (name, category), counts in zip(streams.sources, streams.counts, strict=True)
        ),
        files=files,
        removed=Removed(
            unusable=reading.unusable(),
            empty=sieve.empty,
            exact=sieve.exact,
            near=sieve.similar,
            over_cap=streams.over_cap,
        ),
        settings=Settings(
            validation_share=fraction_text(recipe.shares.validation),
            branch_share=fraction_text(recipe.shares.branch),
            max_validation_tokens=recipe.max_validation_tokens,
            near_threshold=None if recipe.near is None else fraction_text(recipe.near),
            near_method="" if near is None else near.method,
        ),
        provenance=tuple(reading.provenance()),
    )
