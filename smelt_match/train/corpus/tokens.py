"""Documents from files of ready tokens: numpy ``.npy`` or raw ``.bin``, each with a sidecar that says what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from smelt_match.errors import BadInput
from smelt_match.files import explained, read_text
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate
from smelt_match.train.corpus.document import Document, name_fault
from smelt_match.train.corpus.tally import Tally
from smelt_match.train.corpus.texts import MAX_DOCUMENT, Fields

CHUNK = 2**22  # tokens
EXAMPLE = '{"vocab_size": 50257, "eos_id": 50256, "dtype": "uint16", "source": "mine", "category": "Web"}'


class Sidecar(Record):
    """What a token file holds.

    Attributes:
        vocab_size: Every id is below it.
        eos_id: The id between documents, before them, or behind them.
        dtype: Of a ``.bin``, little-endian; an ``.npy`` says it itself.
        source, category: Of all its documents, unless given with the input.
    """

    vocab_size: Annotated[int, Field(ge=2, le=2**31)]
    eos_id: Annotated[int, Field(ge=0)]
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None
    source: str | None = None
    category: str | None = None


def sidecar_path(path: Path) -> Path:
    """``x.json`` beside ``x.npy`` or ``x.bin``."""
    return path.with_suffix(".json")


def read_sidecar(path: Path) -> Sidecar:
    """The sidecar of a token file.

    Raises:
        BadInput: It is missing, or is none.
    """
    beside = sidecar_path(path)
    if not beside.is_file():
        raise BadInput(f"{path}: its sidecar {beside.name} is missing", f"write into it: {EXAMPLE}")
    sidecar = validate(Sidecar, load(read_text(beside, "sidecar"), str(beside)))
    if sidecar.eos_id >= sidecar.vocab_size:
        raise BadInput(f"{beside}: eos_id {sidecar.eos_id} is not below vocab_size {sidecar.vocab_size}")
    return sidecar


def read_tokens(path: Path, fields: Fields, tally: Tally) -> Iterator[Document]:
    """The documents between separators; empty ones are left out."""
    sidecar = read_sidecar(path)
    source = fields.fixed_source or sidecar.source or fields.default_source
    category = fields.fixed_category or sidecar.category
    if category is None:
        raise BadInput(f"{sidecar_path(path)}: has no category", f"add it, or name it before the path: Web/mine={path}")
    for fault in (name_fault("source", source), name_fault("category", category)):
        if fault:
            raise BadInput(f"{sidecar_path(path)}: {fault}")
    tokens = _opened(path, sidecar)
    for start, stop in _spans(tokens, sidecar, path):
        tally.read += 1
        if stop - start > MAX_DOCUMENT:
            tally.skip(
                f"{path}: token {start:,}", f"a document of {stop - start:,} tokens; {MAX_DOCUMENT:,} are the most"
            )
        else:
            yield Document(source, category, tokens=np.array(tokens[start:stop]))


def _opened(path: Path, sidecar: Sidecar) -> NDArray[np.integer]:
    with explained(path, "read this file"):
        if path.suffix == ".npy":
            try:
                tokens: NDArray[np.integer] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise BadInput(f"{path}: not an array that can be read: {str(error).splitlines()[0]}") from None
            if not np.issubdtype(tokens.dtype, np.integer):
                raise BadInput(f"{path}: holds {tokens.dtype}, not integers")
            return tokens.reshape(-1)
        if sidecar.dtype is None:
            raise BadInput(f"{sidecar_path(path)}: dtype: required key is missing", f"as in {EXAMPLE}")
        dtype = np.dtype(sidecar.dtype).newbyteorder("<")
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise BadInput(f"{path}: {size:,} bytes are no whole number of {sidecar.dtype} tokens")
        return np.memmap(path, dtype, mode="r") if size else np.empty(0, dtype)


def _spans(tokens: NDArray[np.integer], sidecar: Sidecar, path: Path) -> Iterator[tuple[int, int]]:
    """Where documents begin and end."""
    begin = 0
    for first in range(0, len(tokens), CHUNK):
        chunk = tokens[first : first + CHUNK]
        wrong = np.flatnonzero((chunk < 0) | (chunk >= sidecar.vocab_size))
        if len(wrong):
            where = int(wrong[0])
            raise BadInput(
                f"{path}: token {first + where:,} is {int(chunk[where]):,}; its sidecar says that ids are below "
                f"{sidecar.vocab_size:,}",
                "correct vocab_size, or dtype",
            )
        for end in (np.flatnonzero(chunk == sidecar.eos_id) + first).tolist():
            if end > begin:
                yield begin, end
            begin = end + 1
    if len(tokens) > begin:
        yield begin, len(tokens)
