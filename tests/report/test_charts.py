"""Pictures: what they show, their data beside them, the same bytes again, and without matplotlib."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path

import numpy as np
import pytest

from smelt_match.report.charts import Chart, Line, Marks
from smelt_match.report.charts import draw as picture
from tests.conftest import Ran
from tests.scaling import synthetic

X = np.array([1.0, 2.0, 3.0])
NAMES = ("gain", "loss", "reducible", "residuals")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.write(Path("endpoints.csv"), synthetic.rows(0))


def draw(cli, folder: str, *more: str) -> Ran:  # type: ignore[no-untyped-def]
    return cli("gain", "endpoints.csv", "--draws", 40, "--sparsity", "0.95", "--charts", folder, *more)


def test_each_picture_has_its_data_beside_it(cli) -> None:  # type: ignore[no-untyped-def]
    ran = draw(cli, "charts", "--sparsity", "0.85,0.95,0.97")
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
    for row in rows["gain"]:
        assert float(row["low"]) <= float(row["high"])


def data(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Path(f"charts/{name}.csv").read_text())))


def test_a_panel_has_the_points_of_its_own_level(cli) -> None:  # type: ignore[no-untyped-def]
    sparsities = "0.5,0.95,0.955"  # of the last two, 0.95 is closer
    assert cli("gain", "endpoints.csv", "--draws", 0, "--sparsity", sparsities, "--charts", "charts").code == 0
    wanted = [row["loss"] for row in synthetic.rows(0) if row["run"].endswith("s95")]
    for name in ("loss", "reducible"):
        points = [row for row in data(name) if row["kind"] == "point"]
        assert {row["panel"] for row in points} == {"S = 95 %"}
        assert len(points) == len(wanted) == 48
    assert sorted(float(row["value"]) for row in data("loss") if row["kind"] == "point") == sorted(wanted)


def test_a_table_without_scales_has_its_levels_too(cli) -> None:  # type: ignore[no-untyped-def]
    table = [row | {"sparsity": 0.95 if row["run"].endswith("s95") else 0.9} for row in synthetic.rows(0)]
    synthetic.write(Path("endpoints.csv"), [{k: v for k, v in row.items() if k != "scale"} for row in table])
    assert cli("gain", "endpoints.csv", "--draws", 0, "--sparsity", "0.95", "--charts", "charts").code == 0
    assert len([row for row in data("loss") if row["kind"] == "point"]) == 48


def test_pictures_and_table_agree_on_what_is_extrapolated(cli) -> None:  # type: ignore[no-untyped-def]
    sparsities = "0.5,0.95"
    assert cli("gain", "endpoints.csv", "--draws", 0, "--sparsity", sparsities, "--charts", "charts").code == 0
    lines = data("gain")
    budgets = list(dict.fromkeys(row["flops"] for row in lines))[::10]
    ran = cli("gain", "endpoints.csv", "--draws", 0, "--sparsity", sparsities, "--budget", ",".join(budgets),
              "--format", "json")  # fmt: skip
    told = {(row["flops"], f"S = {row['sparsity'] * 100:g} %"): row["outside_the_fit"] for row in
            json.loads(ran.out)["gains"]}  # fmt: skip
    dashed = {(float(row["flops"]), row["panel"]): row["extrapolated"] == "1" for row in lines}
    assert {key: dashed[key] for key in told} == {key: bool(names) for key, names in told.items()}
    assert any("F*" in names and "C" not in names.split(", ") for names in told.values())
    for row in data("loss"):
        if row["kind"] == "line" and row["panel"] == "S = 50 %":
            assert row["extrapolated"] == "1"


def test_long_names_stay_within_the_picture(cli) -> None:  # type: ignore[no-untyped-def]
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    long = {"smelt": "looped-" + "x" * 90 + "-$a", "baseline": "looped-" + "x" * 90 + "-$b"}
    synthetic.write(Path("endpoints.csv"), [row | {"arch": long[row["arch"]]} for row in synthetic.rows(0)])
    ran = cli("gain", "endpoints.csv", "--draws", 5, "--sparsity", "0.95", "--target", long["smelt"], "--reference",
              long["baseline"], "--charts", "charts")  # fmt: skip
    assert ran.code == 0, ran.err
    assert {row["series"] for row in data("residuals")} == set(long.values())
    panel = "S = 95 %"
    lines = [Line(f"{name}, frontier", panel, X, X, X > 2, X, X) for name in long.values()]
    marks = [Marks(name, panel, X, X) for name in long.values()]
    figure = picture(Chart("loss", f"Loss: {'y' * 300}", "nats", [panel], lines, marks))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    legend = figure.legends[0]
    for artist in (figure.texts[0] if figure.texts else figure._suptitle, legend):
        assert artist is not None
        box = artist.get_window_extent(canvas.get_renderer())
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(set(labels)) == len(labels)


def test_a_line_that_is_extrapolated_throughout_is_drawn() -> None:
    line = Line("CE Gain", "S = 50 %", X, -X * 1e6, X > 9)
    picture(Chart("gain", "Compute saved", "CE Gain", ["S = 50 %"], [line], percent=True, zero=True))


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
