"""A table of numbers from a CSV or JSON-lines file, with the line of every row and every fault told at once."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.scaling.design import Array

MAX_ROWS = 20_000
MAX_BYTES = 2**26
MAX_COLUMNS = 2_000
SHOWN_FAULTS = 20


@dataclass(frozen=True)
class Rule:
    """What a column's numbers must be."""

    holds: Callable[[float], bool]
    words: str
    hint: str = ""


COUNT = Rule(lambda value: 1 <= value <= 1e30, "a number from 1 to 1e30")
NOT_NEGATIVE = Rule(lambda value: 0 <= value <= 1e30, "a number from 0 to 1e30")
LOSS = Rule(lambda value: 1e-6 <= value <= 1e3, "a loss from 1e-6 to 1000 nats")
SHARE = Rule(lambda value: 0 <= value <= 0.999999, "a share from 0 to 0.999999", "sparsity is a share: 0.85, not 85")
SCORE = Rule(lambda value: abs(value) <= 1e12, "a number up to 1e12")


@dataclass
class Faults:
    """Faults of a file, collected until they are told together."""

    found: list[str] = field(default_factory=list)
    hint: str = ""

    def add(self, text: str, hint: str = "") -> None:
        """One more."""
        self.found.append(text)
        self.hint = self.hint or hint

    def tell(self) -> None:
        """Raise `BadInput` if there are any."""
        if self.found:
            rest = len(self.found) - SHOWN_FAULTS
            more = [f"and {rest:,} more faults of this kind"] if rest > 0 else []
            raise BadInput("\n".join([*self.found[:SHOWN_FAULTS], *more]), self.hint)


@dataclass(frozen=True)
class Table:
    """Rows of a file.

    Attributes:
        where: The file.
        columns: Cells of each column, by header: texts, or JSON values.
        lines: The 1-based line of each row.
        left_out: How many rows each condition has left out, by its text; a row may meet several.
        num_left_out: How many rows that are.
    """

    where: str
    columns: Mapping[str, list[Any]]
    lines: Sequence[int]
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_left_out: int = 0

    def __len__(self) -> int:
        return len(self.lines)

    def need(self, headers: Iterable[str], faults: Faults) -> bool:
        """Whether all these columns are there; says which are missing."""
        missing = [header for header in headers if header not in self.columns]
        if missing:
            have = ", ".join(list(self.columns)[:12]) + (", …" if len(self.columns) > 12 else "")
            for header in missing:
                faults.add(f"{self.where}: no column {header!r}")
            known = close_names(missing[0], self.columns) if len(self.columns) > 12 else f"columns: {have}"
            faults.hint = faults.hint or f"{known}; --column ROLE=HEADER maps other names"
        return not missing

    def texts(self, header: str, faults: Faults) -> list[str]:
        """A column as texts that are not empty."""
        found = []
        for line, cell in zip(self.lines, self.columns[header], strict=True):
            text = "" if cell is None else str(cell).strip()
            if not text or len(text) > 200:
                faults.add(f"{self.where}:{line}: {header}: expected a name, found {_cut(cell)}")
            found.append(text)
        return found

    def numbers(self, header: str, rule: Rule, faults: Faults) -> Array:
        """A column as numbers that keep a rule."""
        values = np.empty(len(self))
        for row, (line, cell) in enumerate(zip(self.lines, self.columns[header], strict=True)):
            value = number(cell)
            if value is None or not rule.holds(value):
                expected = rule.words if value is not None else "a finite number"
                faults.add(f"{self.where}:{line}: {header}: expected {expected}, found {_cut(cell)}", rule.hint)
                value = math.nan
            values[row] = value
        return values

    def matching(self, pattern: str) -> list[str]:
        """Headers that match a pattern such as ``loss_*``, in the file's order."""
        return [header for header in self.columns if fnmatch.fnmatchcase(header, pattern)]

    def where_rows(self, keep: Sequence[bool] | np.ndarray[Any, Any]) -> Table:
        """The rows that are kept."""
        rows = np.flatnonzero(np.asarray(keep, dtype=bool)).tolist()
        return Table(
            self.where,
            {header: [cells[row] for row in rows] for header, cells in self.columns.items()},
            [self.lines[row] for row in rows],
            self.left_out,
            self.num_left_out + len(self) - len(rows),
        )

    def without(self, conditions: Mapping[str, Sequence[bool] | np.ndarray[Any, Any]]) -> Table:
        """The table without the rows that meet any condition, given by its text; it remembers how many met each."""
        masks = {text: np.asarray(mask, dtype=bool) for text, mask in conditions.items()}
        kept = self.where_rows(~np.any([np.zeros(len(self), dtype=bool), *masks.values()], axis=0))
        if not len(kept):
            raise BadInput(f"{self.where}: every row is excluded")
        return replace(kept, left_out={**self.left_out, **{text: int(mask.sum()) for text, mask in masks.items()}})


def read_table(path: Path) -> Table:
    """Read a CSV file (commas, a header line) or JSON lines; `BadInput` lists what is wrong with it."""
    text = read_text(path, "table", MAX_BYTES)
    faults = Faults()
    read = _json_lines if text.lstrip().startswith(("{", "[")) else _csv
    table = read(text, str(path), faults)
    faults.tell()
    if not len(table):
        raise BadInput(f"{path}: no rows")
    return table


def _limit(count: int, where: str) -> None:
    if count > MAX_ROWS:
        raise BadInput(
            f"{where}: more than {MAX_ROWS:,} rows",
            "an end point is one finished run: drop the intermediate steps, or thin the table out",
        )


def _csv(text: str, where: str, faults: Faults) -> Table:
    reader = csv.reader(io.StringIO(text), strict=True)
    headers: list[str] = []
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                continue
            if not headers:
                headers = [cell.strip() for cell in row]
                _check_headers(headers, f"{where}:{reader.line_num}", faults)
                cells = [[] for _ in headers]
                continue
            if len(row) != len(headers):
                faults.add(f"{where}:{reader.line_num}: {len(row)} cells, the header has {len(headers)}")
                continue
            lines.append(reader.line_num)
            _limit(len(lines), where)
            for column, cell in zip(cells, row, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise BadInput(f"{where}:{reader.line_num}: not valid CSV: {error}") from None
    return Table(where, dict(zip(headers, cells, strict=True)), lines)


def _check_headers(headers: list[str], place: str, faults: Faults) -> None:
    if len(headers) == 1:
        signs = {";": "semicolons", "\t": "tabs", "|": "bars"}
        found = [name for sign, name in signs.items() if sign in headers[0]]
        if found:
            raise BadInput(
                f"{place}: one column, {_cut(headers[0])}: cells are separated by {found[0]}, not by commas",
                "write the table with commas, or as JSON lines",
            )
    if len(headers) > MAX_COLUMNS:
        raise BadInput(f"{place}: {len(headers):,} columns, more than {MAX_COLUMNS:,}")
    for index, header in enumerate(headers):
        if not header:
            faults.add(f"{place}: column {index + 1} has no name")
        elif header in headers[:index]:
            faults.add(f"{place}: two columns are named {header!r}")
    faults.tell()


def _json_lines(text: str, where: str, faults: Faults) -> Table:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, part in enumerate(text.split("\n"), start=1):
        if not part.strip():
            continue
        try:
            value = json.loads(part)
        except (ValueError, RecursionError) as error:
            faults.add(f"{where}:{line}: not JSON: {error}", "JSON lines have one object a line")
            continue
        if not isinstance(value, dict):
            faults.add(f"{where}:{line}: expected an object, found {_cut(value)}", "JSON lines have one object a line")
            continue
        rows.append(_flat(value))
        lines.append(line)
        _limit(len(lines), where)
    headers = list(dict.fromkeys(header for row in rows for header in row))
    if len(headers) > MAX_COLUMNS:
        raise BadInput(f"{where}: {len(headers):,} columns, more than {MAX_COLUMNS:,}")
    return Table(where, {header: [row.get(header) for row in rows] for header in headers}, lines)


def _flat(value: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """Nested objects as columns with a dot: ``losses.code``."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and depth:
            found |= {f"{key}.{name}": deep for name, deep in _flat(inner, depth - 1).items()}
        else:
            found[key] = inner
    return found


def number(cell: Any) -> float | None:
    """A cell as a finite number, or None."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    if isinstance(cell, str) and "_" in cell:
        return None
    return value if math.isfinite(value) else None


def _cut(value: Any) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
