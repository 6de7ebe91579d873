"""CSV: a text that a spreadsheet would take for a formula is shown as text, whichever command writes it."""

from __future__ import annotations

import csv
import io
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import smelt_match
from smelt_match.export.table import Column, csv_text, render
from tests.cli.conftest import Cli
from tests.scaling import synthetic

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")
NAMES = {"smelt": "=smelt", "baseline": "@baseline", "100m": "+100m", "score_0": "=score_0"}
PAIR = ("--target", "=smelt", "--reference", "@baseline")


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-1+1", "=", "-", "+1 %x"])
def test_a_text_like_a_formula_gets_an_apostrophe(text: str) -> None:
    (header,), (cell,) = csv.reader(io.StringIO(csv_text([text], [[text]]), newline=""))
    assert header == cell == "'" + text.replace("\r", "\n")


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_a_line_end_in_a_cell_begins_no_row(end: str) -> None:
    text = csv_text(["x", "y"], [[f"a{end}=1", f"b{end}"]])
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["x", "y"], ["a\n=1", "b\n"]]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-0.5, "-0.5"), (-3, "-3"), (Fraction(-1, 2), "-0.5"), ("-0.5", "-0.5"), ("+1.0 %", "+1.0 %"),
        ("-1.5e-07", "-1.5e-07"), ("+1,024", "+1,024"), (None, ""), ("a=1", "a=1"), ("'=1", "'=1"), ("–", "–"),
        (" =1", " =1"), (True, "True"), (float("-inf"), "-inf"),
    ],
)  # fmt: skip
def test_numbers_and_other_texts_stay_as_they_are(value: Any, cell: str) -> None:
    assert list(csv.reader(io.StringIO(csv_text(["x", "y"], [[value, 0]])))) == [["x", "y"], [cell, "0"]]


def test_tables_for_people_have_no_apostrophe() -> None:
    for form in ("table", "md", "tex"):
        assert "'" not in render([Column("x", "x")], [{"x": "=1+1"}], form)  # type: ignore[arg-type]


def test_there_is_one_writer_of_csv() -> None:
    package = Path(smelt_match.__file__).parent
    found = [
        path for path in package.rglob("*.py") if "csv.writer" in path.read_text() or "DictWriter" in path.read_text()
    ]
    assert [path.relative_to(package).as_posix() for path in found] == ["export/table.py"]


def cells(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]


def harmless(text: str) -> bool:
    """Whether a spreadsheet computes nothing of a CSV."""
    return all(cell[:1] not in "=+-@\t\r" or NUMBER.fullmatch(cell) for cell in cells(text) if cell)


def renamed(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{NAMES.get(key, key): NAMES.get(value, value) for key, value in row.items()} for row in table]


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "endpoints.csv"),
        ("fit", "endpoints.csv", "--by", "source"),
        ("gain", "endpoints.csv", *PAIR, "--draws", "0"),
        ("gain", "endpoints.csv", *PAIR, "--draws", "0", "--by", "source"),
        ("calibrate", "endpoints.csv", "--score", "=score_*", "--reference", "@baseline"),
        ("calibrate", "endpoints.csv", "--score", "=score_*", "--reference", "@baseline", "--by", "scale"),
    ],
)
def test_names_of_a_table(cli: Cli, here: Path, command: tuple[str, ...]) -> None:
    table = renamed(synthetic.with_scores(synthetic.with_sources(synthetic.rows(0))))
    synthetic.write(here / "endpoints.csv", table)
    ran = cli(*command, "--format", "csv")
    assert ran.code == 0, ran.err
    assert any(cell[1:] in NAMES.values() for cell in cells(ran.out) if cell.startswith("'"))
    assert harmless(ran.out)


def test_names_in_the_data_of_pictures(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    synthetic.write(Path("endpoints.csv"), renamed(synthetic.rows(0)))
    ran = cli("gain", "endpoints.csv", *PAIR, "--draws", "0", "--sparsity", "0.95", "--charts", "charts")
    assert ran.code == 0, ran.err
    texts = [path.read_text() for path in Path("charts").glob("*.csv")]
    assert any("'=smelt" in text for text in texts)
    assert all(map(harmless, texts))


def test_sources_categories_and_files_of_a_corpus(cli: Cli) -> None:
    line = {"source": "=1+1", "category": "@cmd"}
    for name in ("a.jsonl", "=b.jsonl"):
        Path(name).write_text(
            "".join(json.dumps(line | {"text": f"{name} {n} tells of {n * n}."}) + "\n" for n in range(200))
        )
    assert cli("corpus", "build", "a.jsonl", "@D/t==b.jsonl", "--near", "none", "-o", "c").code == 0
    shown = cli("corpus", "show", "c", "--format", "csv").out
    assert {"'=1+1", "'@cmd"} <= set(cells(shown))
    history = cli("corpus", "show", "c", "--provenance", "--format", "csv").out
    assert "'=b.jsonl" in cells(history)
    assert harmless(shown)
    assert harmless(history)
    document = json.loads(cli("corpus", "show", "c", "--format", "json").out)
    assert "=1+1" in {source["name"] for source in document["sources"]}
