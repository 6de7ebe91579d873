"""Documents from files of text: JSON lines, Parquet, folders, and data sets of the ``datasets`` library."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.files import explained
from smelt_match.train.corpus.document import Document, name_fault
from smelt_match.train.corpus.tally import Tally

MAX_DOCUMENT = 64 * 2**20  # bytes
EXTRA = "pip install 'smelt-match[train]'"


@dataclass(frozen=True)
class Fields:
    """Which fields of a record hold what, or what holds for every record.

    Attributes:
        text, source, category: Names of fields.
        fixed_source, fixed_category: Given with the input; then records need no such field.
        default_source: Where neither is there.
    """

    text: str = "text"
    source: str = "source"
    category: str = "category"
    fixed_source: str | None = None
    fixed_category: str | None = None
    default_source: str = ""

    def document(self, record: object) -> Document | str:
        """A document, or why a record is none."""
        if not isinstance(record, Mapping):
            return "is no object"
        text = record.get(self.text)
        source = self.fixed_source or record.get(self.source) or self.default_source
        category = self.fixed_category or record.get(self.category)
        if text is None:
            return f"has no field {self.text!r}"
        if category is None:
            return f"has no category: no field {self.category!r}"
        faults = [name_fault("source", source), name_fault("category", category), text_fault(text)]
        return next((fault for fault in faults if fault), None) or Document(source, category, text)

    def column_names(self) -> list[str]:
        """The fields to read."""
        optional = [self.source] * (not self.fixed_source) + [self.category] * (not self.fixed_category)
        return [self.text, *optional]


def text_fault(text: object) -> str:
    """Why ``text`` is none, or an empty text."""
    if not isinstance(text, str):
        return f"the text is {type(text).__name__}, not a string"
    if "\0" in text:
        return "holds NUL: binary data, not text"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"not Unicode text (half of a surrogate pair at character {error.start + 1})"
    return f"{size:,} bytes of text; {MAX_DOCUMENT:,} are the most" if size > MAX_DOCUMENT else ""


def read_jsonl(path: Path, fields: Fields, tally: Tally) -> Iterator[Document]:
    """A record a line, plain or gzip. Lines that are no document go to the tally by their number."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with explained(path, "read this file"), opened(path, "rb") as stream:
        try:
            for number, line in _lines(stream, path):
                if not line.strip():
                    continue
                tally.read += 1
                found = _parsed(line, fields)
                if isinstance(found, str):
                    tally.skip(f"{path}:{number}", found)
                else:
                    yield found
        except (EOFError, zlib.error) as error:
            raise BadInput(f"{path}: the compressed data is damaged: {error}") from None


def _lines(stream: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(2 * MAX_DOCUMENT):
        number += 1
        if len(line) == 2 * MAX_DOCUMENT and not line.endswith(b"\n"):
            raise BadInput(f"{path}:{number}: a line of more than {2 * MAX_DOCUMENT:,} bytes", "is this JSON lines?")
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _parsed(line: bytes, fields: Fields) -> Document | str:
    try:
        return fields.document(json.loads(line.decode()))
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start + 1} of the line)"
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"


def read_parquet(path: Path, fields: Fields, tally: Tally) -> Iterator[Document]:
    """A row a record."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"{path}: reading Parquet: pyarrow is not installed", EXTRA) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = _columns(str(path), file.schema_arrow.names, fields)
            number = 0
            for rows in file.iter_batches(columns=names, batch_size=1024):
                for record in rows.to_pylist():
                    number += 1
                    yield from _record(record, f"{path}: row {number}", fields, tally)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None


def read_dataset(path: Path, fields: Fields, tally: Tally) -> Iterator[Document]:
    """A data set that ``datasets.Dataset.save_to_disk`` wrote; of a dictionary of them, all, by name."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra(f"{path}: reading a data set: datasets is not installed", EXTRA) from None
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises whatever its files make it stumble over
        raise BadInput(f"{path}: not a data set that can be read: {error}") from None
    parts = {"": found} if isinstance(found, datasets.Dataset) else {f"{name} ": found[name] for name in sorted(found)}
    for part, rows in parts.items():
        rows = rows.select_columns(_columns(f"{path} {part}".strip(), rows.column_names, fields))
        for number, record in enumerate(rows, 1):
            yield from _record(record, f"{path}: {part}row {number}", fields, tally)


def _columns(place: str, names: list[str], fields: Fields) -> list[str]:
    if fields.text not in names:
        raise BadInput(f"{place}: has no column {fields.text!r}", f"--text-field, one of: {', '.join(names)[:200]}")
    if not fields.fixed_category and fields.category not in names:
        hint = f"--category-field, one of: {', '.join(names)[:200]}; or name it before the path: Code/mine=PATH"
        raise BadInput(f"{place}: has no column {fields.category!r}", hint)
    return [name for name in fields.column_names() if name in names]


def _record(record: object, place: str, fields: Fields, tally: Tally) -> Iterator[Document]:
    tally.read += 1
    found = fields.document(record)
    if isinstance(found, str):
        tally.skip(place, found)
    else:
        yield found


def read_folder(path: Path, fields: Fields, pattern: str, tally: Tally) -> Iterator[Document]:
    """A document a file, by name; hidden files and folders are left out. All have the folder's category."""
    if fields.fixed_category is None:
        raise BadInput(f"{path}: the files of a folder have no category", f"name it before the path: Web/mine={path}")
    source = fields.fixed_source or fields.default_source
    for file in sorted(path.rglob(pattern)):
        inside = file.relative_to(path)
        if not file.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        tally.read += 1
        found = _file_document(file, source, fields.fixed_category)
        if isinstance(found, str):
            tally.skip(str(file), found)
        else:
            yield found


def _file_document(path: Path, source: str, category: str) -> Document | str:
    """A document, or why a file is none."""
    with explained(path, "read this file"):
        if path.stat().st_size > MAX_DOCUMENT:
            return f"{path.stat().st_size:,} bytes; {MAX_DOCUMENT:,} are the most"
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text (byte {error.start + 1})"
    return text_fault(text) or Document(source, category, text)
