"""``smelt-match calibrate``: from validation loss to benchmark scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import AnswerIsNo, BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.report.calibrations import Calibrations
    from smelt_match.scaling.calibration import Sigmoid
    from smelt_match.scaling.endpoints import EndPoints

EXAMPLES = """Examples:

  smelt-match calibrate endpoints.csv --score 'score_*'

  smelt-match calibrate endpoints.csv --score 'score_*' --by scale"""


def calibrate(
    endpoints: laws.EndPointsFile,
    score: Annotated[str, typer.Option("--score", metavar="PATTERN", help="Columns with the metrics.")],
    reference: Annotated[str, typer.Option("--reference", help="The architecture that curves are fitted to.")] = (
        "baseline"
    ),
    lower_is_better: Annotated[bool, typer.Option("--lower-is-better", help="The metrics are losses.")] = False,
    by: Annotated[
        str | None, typer.Option("--by", help="scale or category: what the others have beyond the curve.")
    ] = None,
    categories: Annotated[
        Path | None, typer.Option("--categories", metavar="FILE", help="YAML: tasks (and chances) by category.")
    ] = None,
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Fit a sigmoid from validation loss to each metric, and show who exceeds it.

    Eq. 6 and 7. The curve is fitted to the reference alone. Parameters that its points do not pin down are named.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import calibrations as report
    from smelt_match.report.laws import EXCLUDED

    shown = options.format_option(form)
    options.check_output(output, force)
    if by is not None:
        laws.choice("--by", by, ("scale", "category"))
    if (by == "category") and categories is None:
        raise BadInput("--by category needs --categories FILE")
    found = laws.read_end_points(endpoints, "calibration", column, exclude)
    result = _calibrated(found, reference, score, 1 if lower_is_better else -1, categories)
    if by is not None and not result.excess:
        raise BadInput(f"{endpoints}: {result.reference} is the only architecture, so that nobody exceeds its curve")
    if shown == "json":
        text = to_json(result.document() | laws.excluded_document(found))
    else:
        columns, rows = (report.METRICS, result.metric_rows()) if by is None else (report.EXCESS, result.excess_rows())
        note = "\n".join([*result.words(by is not None), *laws.excluded_words(found)])
        text = render([*columns, *EXCLUDED], [row | laws.excluded_row(found) for row in rows], shown, note)
    options.emit(text, output, force)


def _calibrated(
    found: EndPoints, reference: str, pattern: str, direction: int, categories: Path | None
) -> Calibrations:
    import numpy as np

    from smelt_match.report.calibrations import Calibrations
    from smelt_match.scaling.calibration import calibrate as fit_curve
    from smelt_match.scaling.endpoints import WHOLE
    from smelt_match.scaling.groups import read_categories
    from smelt_match.scaling.table import SCORE, Faults

    if found.architectures == [WHOLE]:
        reference = WHOLE
    if reference not in found.architectures:
        hint = close_names(reference, found.architectures)
        raise BadInput(f"{found.table.where}: no architecture {reference[:60]!r}", hint)
    headers = [header for header in found.table.matching(pattern) if header not in found.headers.values()]
    if not headers:
        raise BadInput(f"{found.table.where}: no column matches {pattern!r}", "name the metrics with --score")
    faults = Faults()
    scores = {header: found.table.numbers(header, SCORE, faults) for header in headers}
    faults.tell()
    loss, mine = found.values["loss"], found.rows(reference)
    curves: dict[str, Sigmoid] = {}
    refused: list[AnswerIsNo] = []
    for name, score in scores.items():
        try:
            curves[name] = fit_curve(loss[mine], score[mine], direction, name)
        except AnswerIsNo as error:
            refused.append(error)
    if not curves:
        raise AnswerIsNo("\n".join(one.message for one in refused), refused[0].hint)
    for one in refused:
        typer.echo(f"warning: left out: {one.message}", err=True)
    others = [row for row in range(len(found.table)) if found.arch[row] != reference]
    scales = found.scales() if "scale" in found.headers else [""] * len(found.table)
    excess = {name: one.excess(loss, scores[name]) for name, one in curves.items()}
    if categories is not None:
        groups = read_categories(categories, list(curves))
        excess = {
            name: np.mean([excess[task] / (1 - (chance or 0.0)) for task, chance in tasks.items()], axis=0)
            for name, tasks in groups.items()
        }
    told = {
        name: [(str(found.arch[row]), scales[row], float(values[row])) for row in others]
        for name, values in excess.items()
    }
    return Calibrations(reference, curves, told if others else {}, direction, categories is not None)
