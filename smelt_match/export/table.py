"""One column list, every format: terminal table, Markdown, LaTeX (booktabs), CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from smelt_match.units import MINUS

Format = Literal["table", "md", "tex", "csv", "json"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name in CSV and in the row dictionaries.
        header: Its heading for people.
        text: A value as people read it.
        left: Whether it is aligned left.
        data_only: Whether it appears in CSV alone.
    """

    key: str
    header: str
    text: Callable[[Any], str] = str
    left: bool = False
    data_only: bool = False

    def shown(self, row: Row) -> str:
        """The cell for people; an unknown value is a dash."""
        value = row.get(self.key)
        return "–" if value is None else self.text(value)


def render(columns: Sequence[Column], rows: Sequence[Row], form: Format, note: str = "") -> str:
    """The rows in a format, ending in a newline.

    ``note`` says how the numbers were counted: under the table, or as a comment in LaTeX; CSV has columns for it.
    """
    if form == "csv":
        return csv_text([column.key for column in columns], ([row.get(c.key) for c in columns] for row in rows))
    columns = [column for column in columns if not column.data_only]
    headers = [column.header for column in columns]
    cells = [[" ".join(column.shown(row).split()) for column in columns] for row in rows]
    align = ["left" if column.left else "right" for column in columns]
    if form == "table":
        return _terminal(headers, cells, align) + (f"\n{note}\n" if note else "")
    from tabulate import tabulate

    kind = "pipe" if form == "md" else "latex_booktabs"
    if form == "md":  # a bar would end the cell
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    text = tabulate(cells, headers, tablefmt=kind, colalign=align, disable_numparse=True)
    if form == "tex":
        return comments(note) + _plain_tex(text) + "\n"
    return text + "\n" + (f"\n{note}\n" if note else "")


def comments(text: str) -> str:
    """A text as LaTeX comments: every line of it, so that none of it is typeset, whatever a file says."""
    return "".join(f"% {line}\n" for line in text.splitlines())


# pdfLaTeX knows these signs only as commands.
_TEX = {MINUS: "$-$", "–": "--", "×": r"$\times$", "·": r"$\cdot$", "Σ": r"$\Sigma$", "≤": r"$\leq$",
        "α": r"$\alpha$", "γ": r"$\gamma$", "τ": r"$\tau$", "φ": r"$\varphi$", "²": "$^2$"}  # fmt: skip


def _plain_tex(text: str) -> str:
    for sign, command in _TEX.items():
        text = text.replace(sign, command)
    return text


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV as all of the program writes it."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([_datum(cell) for cell in row] for row in (header, *rows))
    return stream.getvalue()


_FORMULA = re.compile(r"[=+\-@\t\n]")
_NUMBER = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?( ?%)?", re.ASCII | re.IGNORECASE)


def _datum(value: Any) -> Any:
    """A value as a spreadsheet reads it: exact rationals become integers or decimals.

    A text that it would take for a formula, such as a name from a file, gets an apostrophe before it, as OWASP advises
    (https://owasp.org/www-community/attacks/CSV_Injection); a number with a sign stays one.
    """
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, str):
        text = re.sub(r"\r\n?", "\n", value)  # the writer quotes \n alone: after a bare \r a new row would begin
        return "'" + text if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
    return "" if value is None else value


def _terminal(headers: list[str], cells: list[list[str]], align: list[str]) -> str:
    """A plain table, as wide as it needs to be: a terminal may wrap it, but nothing is cut off."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for header, side in zip(headers, align, strict=True):
        table.add_column(Text(header), justify="left" if side == "left" else "right", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=10_000, color_system=None, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
