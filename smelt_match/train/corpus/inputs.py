"""What a corpus is built from: paths, each with its kind, or what ships and lies about already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from smelt_match.errors import BadInput
from smelt_match.train.corpus.document import Document, name_fault
from smelt_match.train.corpus.encoders import Encoder, Ready, find_encoder
from smelt_match.train.corpus.tally import Tally
from smelt_match.train.corpus.texts import Fields, read_dataset, read_folder, read_jsonl, read_parquet
from smelt_match.train.corpus.tokens import read_sidecar, read_tokens
from smelt_match.train.manifest import Origin

JSONL = (".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
TOKENS = (".npy", ".bin")
DATASET_MARKS = ("dataset_info.json", "dataset_dict.json")


@dataclass(frozen=True)
class Input:
    """A path and how to read it: ``PATH``, or ``CATEGORY/SOURCE=PATH``.

    Attributes:
        path: A file or a folder.
        kind: ``jsonl``, ``parquet``, ``folder``, ``dataset`` or ``tokens``.
        fields: Where its documents say what they are.
    """

    path: Path
    kind: str
    fields: Fields

    @classmethod
    def parse(cls, text: str, fields: Fields) -> Input:
        """Understand an argument of the command line.

        Raises:
            BadInput: There is no such path, or its kind cannot be told.
        """
        label, found, rest = text.partition("=")
        path = Path(text) if not found or _exists(Path(text)) else Path(rest)
        if not _exists(path):
            raise BadInput(f"{path}: no such file or folder")
        default = path.name.partition(".")[0] or "mine"
        fields = replace(fields, default_source=default)
        if str(path) != text and found:
            category, _, source = label.partition("/")
            for what, name in (("category", category), ("source", source or default)):
                if fault := name_fault(what, name):
                    raise BadInput(f"{text[:80]}: {fault}", "write it as CATEGORY/SOURCE=PATH")
            fields = replace(fields, fixed_category=category, fixed_source=source or default)
        return cls(path, _kind(path), fields)

    def documents(self, pattern: str, tally: Tally) -> Iterator[Document]:
        """Its documents, in a fixed order; what is none goes to the tally."""
        if self.kind == "folder":
            yield from read_folder(self.path, self.fields, pattern, tally)
        else:
            read = {"jsonl": read_jsonl, "parquet": read_parquet, "dataset": read_dataset, "tokens": read_tokens}
            yield from read[self.kind](self.path, self.fields, tally)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def _kind(path: Path) -> str:
    if path.is_dir():
        return "dataset" if any((path / mark).is_file() for mark in DATASET_MARKS) else "folder"
    if not path.is_file():
        raise BadInput(f"{path}: is not a regular file")
    name = path.name.lower()
    if name.endswith(JSONL):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(TOKENS):
        return "tokens"
    raise BadInput(
        f"{path}: its name does not say what it is",
        "known: .jsonl (or .jsonl.gz), .parquet, .npy, .bin, a folder of text files, a folder of a datasets data set",
    )


class Reading(Protocol):
    """Documents that can be read more than once; the rest is known after a reading."""

    def read(self) -> Iterable[Document]:
        """All documents, in a fixed order."""
        ...

    def unusable(self) -> int:
        """Items left out."""
        ...

    def skipped(self) -> list[str]:
        """The first items left out, and why."""
        ...

    def provenance(self) -> list[Origin]:
        """Where the documents came from."""
        ...


@dataclass
class Inputs:
    """Several inputs as one run of documents, which can be read again.

    Attributes:
        inputs: In the order given.
        pattern: Which files of a folder of texts are read.
        max_bad: The share of each input's items that may be unusable.
    """

    inputs: Sequence[Input]
    pattern: str = "*"
    max_bad: Fraction = Fraction(1, 1000)
    tallies: list[Tally] = field(default_factory=list)

    def read(self) -> Iterator[Document]:
        """All documents, and their tallies afresh."""
        self.tallies = [Tally(str(each.path), self.max_bad) for each in self.inputs]
        for each, tally in zip(self.inputs, self.tallies, strict=True):
            yield from each.documents(self.pattern, tally)
            tally.check()

    def unusable(self) -> int:
        """Items left out in the last reading."""
        return sum(tally.skipped for tally in self.tallies)

    def skipped(self) -> list[str]:
        """The first items left out of each input in the last reading, and why."""
        return [line for tally in self.tallies for line in tally.shown]

    def provenance(self) -> list[Origin]:
        """Each input as it was named, after a reading."""
        return [
            Origin(item=str(each.path), origin=each.kind, licence="not stated", documents=tally.read - tally.skipped)
            for each, tally in zip(self.inputs, self.tallies, strict=True)
        ]


def encoder_for(inputs: Sequence[Input], name: str | None, separator: str | None) -> Encoder:
    """The encoder that an option names, or that token files imply.

    Raises:
        BadInput: Tokens and texts are mixed, token files disagree about their vocabulary, or ``separator`` is given for
            what has its own.
    """
    ready = [each for each in inputs if each.kind == "tokens"]
    if not ready:
        return find_encoder(name or "bytes", separator)
    texts = [each for each in inputs if each.kind != "tokens"]
    if texts or name is not None:
        what = "--tokenizer" if name is not None else str(texts[0].path)
        raise BadInput(f"{ready[0].path}: holds ready tokens, which cannot be mixed with text ({what})")
    if separator is not None:
        raise BadInput(
            f"--eos {separator[:40]!r}: {ready[0].path} holds ready tokens, and its sidecar names their separator",
            "leave --eos out, or change eos_id in the sidecar",
        )
    said = {each.path: read_sidecar(each.path) for each in ready}
    sizes = {(sidecar.vocab_size, sidecar.eos_id) for sidecar in said.values()}
    if len(sizes) > 1:
        lines = [f"{path}: vocab_size {found.vocab_size:,}, eos_id {found.eos_id:,}" for path, found in said.items()]
        raise BadInput("\n".join(lines), "token files of one corpus share one vocabulary")
    return Ready(*sizes.pop())
