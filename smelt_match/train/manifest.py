"""What a built corpus says of itself: ``corpus.json``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from smelt_match.errors import BadInput
from smelt_match.files import read_text
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import describe

SCHEMA_VERSION: Literal[1] = 1
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("trunk", "branch", "validation")
PARTS = {
    "tokens": None,
    "offsets": "int64",
    "sources": "int32",
}  # each split's files, and their dtype where it is fixed
Size = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Count(Record):
    """How much of a source a split holds.

    Attributes:
        documents: Documents.
        tokens: Tokens, the separator of each document included.
        bytes: UTF-8 bytes of the text, separators left out; None where only tokens were given.
    """

    documents: Size = 0
    tokens: Size = 0
    bytes: Size | None = 0


class Source(Record):
    """A source of documents, its category, and what each split holds of it."""

    name: str
    category: str
    trunk: Count = Count()
    branch: Count = Count()
    validation: Count = Count()


class File(Record):
    """A file beside the manifest."""

    bytes: Size
    sha256: Sha256


class Tokens(Record):
    """What turned text into tokens: ``bytes``, a tokenizer.json (``file``), or somebody else (``ready``)."""

    kind: Literal["bytes", "file", "ready"]
    sha256: Sha256 | None = None


class Removed(Record):
    """Documents that were read and are in no split.

    Attributes:
        unusable: Not to be read as documents.
        empty: No text.
        exact: The same text as an earlier document, but for case, Unicode form and white space.
        near: Training documents whose estimated Jaccard similarity to a validation document reaches the threshold.
        over_cap: Validation documents beyond the cap of their source.
    """

    unusable: Size = 0
    empty: Size = 0
    exact: Size = 0
    near: Size = 0
    over_cap: Size = 0


class Settings(Record):
    """How a corpus was split. Shares are of documents, as exact rationals ``"num/den"``."""

    validation_share: str
    branch_share: str
    max_validation_tokens: Size
    near_threshold: str | None
    near_method: str


class Origin(Record):
    """Where documents came from.

    Attributes:
        item: A file, or a group of documents.
        origin: The place or the program that made it.
        licence: Its terms, as far as they are known.
        documents: How many documents came from it.
    """

    item: str
    origin: str
    licence: str
    documents: Size


class Manifest(Record):
    """A corpus: its vocabulary, sources, files and history. The digest covers all that decides what a model sees."""

    schema_version: Literal[1]
    digest: Sha256
    vocab_size: Annotated[int, Field(ge=2, le=2**31)]
    eos_id: Size
    dtype: Literal["uint16", "uint32"]
    tokenizer: Tokens
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    files: dict[Annotated[str, Field(pattern=r"^[a-z.]+$")], File]
    removed: Removed
    settings: Settings
    provenance: tuple[Origin, ...]

    def to_json(self) -> str:
        """The text of ``corpus.json``."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def content_digest(
    vocab_size: int, eos_id: int, dtype: str, sources: list[tuple[str, str]], files: dict[str, str]
) -> str:
    """The sha256 that fixes a built mixture: vocabulary, the sources' names and categories, and every file's sha256."""
    content = {"vocab_size": vocab_size, "eos_id": eos_id, "dtype": dtype, "sources": sources, "files": files}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def stream_file(split: str, part: str) -> str:
    """The name of a split's file."""
    return f"{split}.{part}.bin"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus folder.

    Raises:
        BadInput: No corpus is there, its manifest is not one, or contradicts itself.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such corpus folder", "make one with: smelt-match corpus build -o DIR")
    if not path.is_file():
        raise BadInput(f"{folder}: holds no {MANIFEST}", "make a corpus with: smelt-match corpus build -o DIR")
    text = read_text(path, "manifest", 64 * 2**20)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        if found[0]["type"] == "json_invalid":
            raise BadInput(
                f"{path}: the file is damaged: {found[0]['msg']}", "build the corpus again, or choose another folder"
            ) from None
        faults = [
            f"{path}: {'.'.join(map(str, fault['loc'])) or 'the whole'}: {fault['msg']}, "
            f"found {describe(fault['input'])}"
            for fault in found
        ]
        raise BadInput("\n".join(faults[:8]), "build the corpus again with this version") from None
    sources = [(source.name, source.category) for source in manifest.sources]
    files = {name: file.sha256 for name, file in manifest.files.items()}
    digest = content_digest(manifest.vocab_size, manifest.eos_id, manifest.dtype, sources, files)
    if digest != manifest.digest:
        raise BadInput(f"{path}: the digest is not that of its content ({digest[:12]}…)", "build the corpus again")
    return manifest
