"""Pictures of a comparison: what is drawn as data, then as CSV, SVG and PNG.

A chart is lines with bands and marks in panels; everything that a picture shows stands in the CSV beside it.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smelt_match.budget.surface import Surface
from smelt_match.errors import MissingExtra
from smelt_match.export.table import csv_text
from smelt_match.files import check_writable, write_atomic
from smelt_match.report.savings import Comparison
from smelt_match.scaling.bootstrap import LEVEL
from smelt_match.scaling.compare import outside
from smelt_match.scaling.design import Array, Mask
from smelt_match.scaling.frontier import Coefficients, gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME = 28
TITLE_CHARACTERS, LEGEND_CHARACTERS = 10, 14  # that fit into an inch
COLOURS = ("#c0510f", "#1f5fa8", "#3b8a5a", "#7a4fa3", "#8a7a1f", "#666666")
BUDGETS = 121
FORMATS = ("csv", "svg", "png")


@dataclass(frozen=True)
class Line:
    """A curve; dashed where it is extrapolated, with a band where there are draws."""

    label: str
    panel: str
    x: Array
    y: Array
    inside: Mask
    low: Array | None = None
    high: Array | None = None
    colour: int = 0


@dataclass(frozen=True)
class Marks:
    """Points: open circles or filled squares."""

    label: str
    panel: str
    x: Array
    y: Array
    colour: int = 0
    filled: bool = True


@dataclass(frozen=True)
class Chart:
    """What a picture shows."""

    name: str
    title: str
    y_label: str
    panels: Sequence[str]
    lines: Sequence[Line] = ()
    marks: Sequence[Marks] = ()
    y_log: bool = False
    percent: bool = False
    zero: bool = False
    levels: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)

    def csv(self) -> str:
        """Every number in the picture."""
        header = ("kind", "panel", "series", "flops", "value", "low", "high", "extrapolated")
        rows: list[tuple[Any, ...]] = []
        for line in self.lines:
            for i in range(len(line.x)):
                ends = ("", "") if line.low is None or line.high is None else (line.low[i], line.high[i])
                row = ("line", line.panel, line.label, line.x[i], line.y[i], *ends, int(not line.inside[i]))
                rows.append(tuple(float(cell) if isinstance(cell, np.floating) else cell for cell in row))
        for marks in self.marks:
            points = zip(marks.x.tolist(), marks.y.tolist(), strict=True)
            rows += [("point", marks.panel, marks.label, x, y, "", "", 0) for x, y in points]
        return csv_text(header, rows)


def charts(
    comparison: Comparison, sparsities: Sequence[float], members: Mapping[str, Sequence[NDArray[np.int64]]]
) -> list[Chart]:
    """The four charts of two fitted architectures: loss, reducible loss, gain and residuals.

    Args:
        comparison: What `gain` shows.
        sparsities: One a panel.
        members: Which points of each architecture belong to each panel.
    """
    pair = (comparison.reference, comparison.target)
    low = min(surface.flops[0] for surface in pair if surface.flops)
    high = max(surface.flops[1] for surface in pair if surface.flops)
    C = np.geomspace(low / 2, high * 30, BUDGETS)
    panels = [f"S = {S * 100:g} %" for S in sparsities]
    lines, reducible, marks, open_marks, gains = [], [], [], [], []
    for colour, surface in enumerate(pair):
        k = Coefficients.of(surface)
        drawn = None if comparison.draws is None else comparison.draws.coefficients[surface.name]
        for S, panel in zip(sparsities, panels, strict=True):
            bands, inside = _bands(drawn, C, S), _inside(surface, surface, C, S)
            name = f"{surface.name}, frontier"
            lines.append(Line(name, panel, C, np.asarray(k.frontier(C, S)), inside, *bands, colour=colour))
            reducible.append(Line(name, panel, C, np.asarray(k.frontier(C, S) - k.E), inside, colour=colour))
        points = comparison.fits[surface.name].parts[surface.name]
        for index, panel in zip(members[surface.name], panels, strict=True):
            mine = points.take(index)
            marks.append(Marks(surface.name, panel, mine.C, mine.loss, colour, filled=bool(colour)))
            open_marks.append(Marks(surface.name, panel, mine.C, mine.loss - k.E, colour, filled=bool(colour)))
    ours, theirs = Coefficients.of(comparison.target), Coefficients.of(comparison.reference)
    for S, panel in zip(sparsities, panels, strict=True):
        bands, inside = _gain_bands(comparison, C, S), _inside(comparison.target, comparison.reference, C, S)
        gains.append(Line("CE Gain", panel, C, np.asarray(gain(ours, theirs, C, S)), inside, *bands, colour=1))
    title = f"{short(comparison.target.name)} against {short(comparison.reference.name)}"
    return [
        Chart("loss", f"Loss against compute: {title}", "validation loss (nats)", panels, lines, marks),
        Chart("reducible", f"Reducible loss: {title}", "loss − E (nats)", panels, reducible, open_marks, y_log=True),
        Chart("gain", f"Compute saved: {title}", "CE Gain", panels, gains, percent=True, zero=True),
        _residuals(comparison),
    ]  # fmt: skip


def _inside(target: Surface, reference: Surface, C: Array, S: float) -> Mask:
    """Where nothing is outside the fit."""
    return np.array([not outside(target, reference, float(budget), S) for budget in C])


def _bands(drawn: Coefficients | None, C: Array, S: float) -> tuple[Array | None, Array | None]:
    if drawn is None:
        return None, None
    values = np.array([np.percentile(drawn.frontier(budget, S), LEVEL) for budget in C])
    return values[:, 0], values[:, 1]


def _gain_bands(comparison: Comparison, C: Array, S: float) -> tuple[Array | None, Array | None]:
    if comparison.draws is None:
        return None, None
    drawn = comparison.draws.coefficients
    ours, theirs = drawn[comparison.target.name], drawn[comparison.reference.name]
    values = np.array([np.percentile(gain(ours, theirs, budget, S), LEVEL) for budget in C])
    return values[:, 0], values[:, 1]


def _residuals(comparison: Comparison) -> Chart:
    marks, levels = [], {}
    for colour, surface in enumerate((comparison.reference, comparison.target)):
        found = comparison.fits[surface.name]
        points, residuals = found.parts[surface.name], found.residuals(surface.name)
        marks.append(Marks(surface.name, surface.name, points.C, residuals, colour, filled=bool(colour)))
        rmse = found.rmse(surface.name)
        levels[surface.name] = [("RMSE", rmse), ("", -rmse)]
    panels = [surface.name for surface in (comparison.reference, comparison.target)]
    return Chart("residuals", "Residuals of the fits", "fit − observed (nats)", panels, (), marks, zero=True,
                 levels=levels)  # fmt: skip


def short(name: str) -> str:
    """A name that fits into a legend: of a long one both ends, which tell variants apart."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def _plain(text: str) -> str:
    """Text that is not read as mathematics."""
    return text.replace("$", r"\$")


def need_matplotlib() -> None:
    """Refuse early where pictures cannot be drawn."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingExtra("pictures need matplotlib, which is not installed", "pip install 'smelt-match[plot]'")


def check_folder(folder: Path, force: bool) -> None:
    """Refuse early what `write_charts` would refuse late."""
    for name in ("loss", "reducible", "gain", "residuals"):
        for form in FORMATS:
            check_writable(folder / f"{name}.{form}", force)


def write_charts(found: Sequence[Chart], folder: Path, force: bool) -> list[Path]:
    """Each chart as CSV, SVG and PNG, with the same bytes for the same numbers."""
    written = []
    for chart in found:
        figure = draw(chart)
        for form in FORMATS:
            path = folder / f"{chart.name}.{form}"
            write_atomic(path, chart.csv() if form == "csv" else _picture(figure, form), force)
            written.append(path)
    return written


def _picture(figure: Figure, form: str) -> bytes:
    import matplotlib as mpl

    stream = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "smelt-match", "svg.fonttype": "none"}):
        figure.savefig(stream, format=form, dpi=160, metadata=metadata)
    return stream.getvalue()


def draw(chart: Chart) -> Figure:
    """The picture, without a display."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width = 5.2 if len(chart.panels) == 1 else 3.6 * len(chart.panels)
    figure = Figure(figsize=(max(width, 6.4), 4.4), layout="constrained")
    axes = figure.subplots(1, len(chart.panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, chart.panels, strict=True):
        _panel(axis, chart, panel)
    axes[0].set_ylabel(chart.y_label)
    inches = figure.get_figwidth()
    figure.suptitle(
        _plain(textwrap.fill(chart.title, int(inches * TITLE_CHARACTERS), break_on_hyphens=False)), fontsize=11
    )
    if chart.lines:
        handles, labels = axes[0].get_legend_handles_labels()
        handles.append(Line2D([], [], color="#666666", linestyle="--", linewidth=1.2))
        labels.append("extrapolated")
        if chart.lines[0].low is not None:
            handles.append(Patch(color="#666666", alpha=0.2, linewidth=0))
            labels.append("95 % of draws")
        across = int(inches * LEGEND_CHARACTERS / (max(map(len, labels)) + 6))  # 6: the line before a label
        figure.legend(
            handles, labels, loc="outside lower center", ncols=max(1, min(len(labels), across)), frameon=False,
            fontsize=8,
        )  # fmt: skip
    return figure


def _panel(axis: Axes, chart: Chart, panel: str) -> None:
    axis.set_xscale("log")
    if chart.y_log:
        axis.set_yscale("log")
    for line in (one for one in chart.lines if one.panel == panel):
        _line(axis, line)
    for marks in (one for one in chart.marks if one.panel == panel):
        colour = COLOURS[marks.colour % len(COLOURS)]
        axis.plot(
            marks.x, marks.y, linestyle="none", marker="s" if marks.filled else "o", markersize=3.4, color=colour,
            markerfacecolor=colour if marks.filled else "none", markeredgewidth=0.8, label=_plain(short(marks.label)),
        )  # fmt: skip
    if chart.zero:
        axis.axhline(0, color="#888888", linewidth=0.8)
    for name, value in chart.levels.get(panel, ()):
        axis.axhline(value, color="#888888", linewidth=0.8, linestyle=":")
        axis.annotate(name, (1.01, value), xycoords=("axes fraction", "data"), ha="left", va="center", fontsize=7)
    if chart.percent:
        from matplotlib.ticker import PercentFormatter

        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        seen = [line.y[line.inside] for line in chart.lines if np.any(line.inside)]
        values = np.concatenate(seen or [np.clip(line.y, -1, 1) for line in chart.lines])
        axis.set_ylim(min(-0.1, float(values.min()) - 0.1), min(1.0, float(values.max()) + 0.35))
    axis.set_xlabel("training FLOPs C")
    if panel:
        axis.set_title(_plain(short(panel)), fontsize=9)
    axis.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _line(axis: Axes, line: Line) -> None:
    colour = COLOURS[line.colour % len(COLOURS)]
    joint = line.inside.copy()  # dashes reach the solid line
    joint[1:-1] &= line.inside[:-2] & line.inside[2:]
    name, comma, kind = line.label.rpartition(", ")
    label = _plain(f"{short(name)}{comma}{kind}")
    axis.plot(line.x, np.where(line.inside, line.y, np.nan), color=colour, linewidth=1.6, label=label)
    axis.plot(line.x, np.where(joint, np.nan, line.y), color=colour, linewidth=1.2, linestyle="--")
    if line.low is not None and line.high is not None:
        axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
