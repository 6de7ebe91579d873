"""``smelt-match contrast``: where a gain sits, over sample lengths and over in-context examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.scaling.endpoints import EndPoints

app = typer.Typer(help="Show where a gain sits.", no_args_is_help=True, rich_markup_mode=None)

Target = Annotated[str, typer.Option("--target", help="The architecture that gains.")]
Reference = Annotated[str, typer.Option("--reference", help="The one it is compared with.")]


@app.command("length", epilog="Examples:\n\n  smelt-match contrast length lengths.csv")
def length(
    table: Annotated[Path, typer.Argument(help="arch, scale, sparsity, length (upper bound), loss; also tokens.")],
    target: Target = "smelt",
    reference: Reference = "baseline",
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Compare the shape of the gain over sample lengths with those of more experts and more parameters."""
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import contrasts as report
    from smelt_match.report.laws import EXCLUDED
    from smelt_match.scaling.contrasts import FAMILIES, curves, pairs, shape

    shown = options.format_option(form)
    options.check_output(output, force)
    found = laws.read_end_points(table, "lengths", column, exclude)
    _both(found, target, reference)
    buckets, made = curves(found, "length", "loss")
    if len(buckets) < 2:
        raise BadInput(f"{table}: one length only, a shape needs at least two")
    families = pairs(made, target, reference, _scales_by_size(found))
    shapes = [shape(family, families[family]) for family in FAMILIES if families[family]]
    if not shapes:
        raise BadInput(f"{table}: no pairs: {target} and {reference} share no scale and sparsity level")
    if shown == "json":
        text = to_json(report.length_document(buckets, shapes) | laws.excluded_document(found))
    else:
        rows = [row | laws.excluded_row(found) for row in report.length_rows(buckets, shapes)]
        note = "\n".join([report.LENGTH_NOTE, *laws.excluded_words(found)])
        text = render([*report.length_columns(buckets), *EXCLUDED], rows, shown, note)
    options.emit(text, output, force)


@app.command("shots", epilog="Examples:\n\n  smelt-match contrast shots shots.csv")
def shots(
    table: Annotated[Path, typer.Argument(help="arch, task, shots, score; a row for each model.")],
    target: Target = "smelt",
    reference: Reference = "baseline",
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Show the gap between two architectures against the number of in-context examples.

    Tasks weigh the same. Numbers of examples that only some tasks have are marked.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import contrasts as report
    from smelt_match.report.laws import EXCLUDED
    from smelt_match.scaling.contrasts import shot_gaps

    shown = options.format_option(form)
    options.check_output(output, force)
    found = laws.read_end_points(table, "shots", column, exclude)
    _both(found, target, reference)
    gaps = shot_gaps(_mean_scores(found, target, reference))
    if shown == "json":
        text = to_json(report.shot_document(gaps, (target, reference)) | laws.excluded_document(found))
    else:
        rows = [row | laws.excluded_row(found) for row in report.shot_rows(gaps)]
        note = f"mean score over tasks; target: {target}, reference: {reference}; gap: target minus reference"
        note = "\n".join([note, *laws.excluded_words(found)])
        text = render([*report.SHOTS, *EXCLUDED], rows, shown, note)
    options.emit(text, output, force)


def _both(found: EndPoints, target: str, reference: str) -> None:
    for name in (target, reference):
        if name not in found.architectures:
            hint = f"{close_names(name, found.architectures)}; name the two with --target and --reference"
            raise BadInput(f"{found.table.where}: no architecture {name[:60]!r}", hint)
    if target == reference:
        raise BadInput(f"--target and --reference are both {target!r}")


def _scales_by_size(found: EndPoints) -> list[str]:
    """Scales by their mean FLOPs per token where the table has them, else in its order."""
    scales = found.scales()
    order = list(dict.fromkeys(scales))
    flops = found.values.get("flops_per_token")
    if flops is None:
        return order
    size = {name: float(flops[[row for row, one in enumerate(scales) if one == name]].mean()) for name in order}
    return sorted(order, key=size.__getitem__)


def _mean_scores(found: EndPoints, target: str, reference: str) -> dict[tuple[str, int], tuple[float, float]]:
    """(target, reference) scores by task and number of examples, over as many models of each."""
    from smelt_match.scaling.table import Faults

    faults = Faults()
    tasks = found.table.texts(found.headers["task"], faults)
    faults.tell()
    sums: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row, (task, k, score) in enumerate(
        zip(tasks, found.values["shots"].tolist(), found.values["score"].tolist(), strict=True)
    ):
        if k != int(k):
            place = f"{found.table.where}:{found.table.lines[row]}"
            raise BadInput(f"{place}: {found.headers['shots']}: expected a whole number, found {k:g}")
        sums.setdefault((task, int(k)), {}).setdefault(str(found.arch[row]), []).append(score)
    result = {}
    for (task, k), by_arch in sums.items():
        ours, theirs = by_arch.get(target, []), by_arch.get(reference, [])
        if len(ours) != len(theirs) or not ours:
            faults.add(
                f"{found.table.where}: {task}, k = {k}: {len(ours)} rows of {target}, {len(theirs)} of {reference}",
                "a gap compares the same models of both",
            )
            continue
        result[task, k] = (sum(ours) / len(ours), sum(theirs) / len(theirs))
    faults.tell()
    return result
