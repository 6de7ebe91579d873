"""Pictures: what they show, their data beside them, the same bytes again, and without matplotlib."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.scaling import synthetic

NAMES = ("gain", "loss", "reducible", "residuals")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.write(Path("endpoints.csv"), synthetic.rows(0))


def draw(cli, folder: str, *more: str) -> Ran:  # type: ignore[no-untyped-def]
    return cli("gain", "endpoints.csv", "--draws", 40, "--sparsity", "0.95", "--charts", folder, *more)


def test_each_picture_has_its_data_beside_it(cli) -> None:  # type: ignore[no-untyped-def]
    ran = draw(cli, "charts")
    assert ran.code == 0, ran.err
    assert ran.err.count("wrote ") == 12
    assert sorted(path.name for path in Path("charts").iterdir()) == sorted(
        f"{name}.{form}" for name in NAMES for form in ("csv", "svg", "png")
    )
    for name in NAMES:
        assert Path(f"charts/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in Path(f"charts/{name}.svg").read_text()
    texts = {name: Path(f"charts/{name}.csv").read_text() for name in NAMES}
    rows = {name: list(csv.DictReader(io.StringIO(text))) for name, text in texts.items()}
    points = [row for row in rows["loss"] if row["kind"] == "point"]
    assert sorted(float(row["value"]) for row in points) == sorted(row["loss"] for row in synthetic.rows(0))
    assert len([row for row in rows["residuals"] if row["kind"] == "point"]) == 144
    low, high = min(float(row["flops"]) for row in points), max(float(row["flops"]) for row in points)
    for row in rows["gain"]:
        assert (row["extrapolated"] == "0") == (low <= float(row["flops"]) <= high)
        assert float(row["low"]) <= float(row["high"])


def test_the_same_numbers_give_the_same_bytes(cli) -> None:  # type: ignore[no-untyped-def]
    assert draw(cli, "charts").code == 0
    before = {path.name: path.read_bytes() for path in Path("charts").iterdir()}
    assert draw(cli, "charts", "--force").code == 0
    assert before == {path.name: path.read_bytes() for path in Path("charts").iterdir()}


def test_pictures_are_not_replaced_without_force(cli) -> None:  # type: ignore[no-untyped-def]
    Path("charts").mkdir()
    Path("charts/gain.svg").write_text("mine")
    ran = draw(cli, "charts")
    assert (ran.code, ran.out) == (2, "")
    assert "gain.svg: exists already" in ran.err
    assert Path("charts/gain.svg").read_text() == "mine"


def test_without_matplotlib_the_install_line_is_told(cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    ran = draw(cli, "charts")
    assert (ran.code, ran.out) == (3, "")
    assert "pip install 'smelt-match[plot]'" in ran.err
    assert not Path("charts").exists()
