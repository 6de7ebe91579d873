"""``smelt-match gain``: the compute that one architecture saves over another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import AnswerIsNo, BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.budget.surface import Surface
    from smelt_match.export.table import Row
    from smelt_match.report.savings import Comparison
    from smelt_match.report.subsets import Subsets
    from smelt_match.scaling.bootstrap import Draws
    from smelt_match.scaling.design import Array
    from smelt_match.scaling.endpoints import EndPoints
    from smelt_match.scaling.fit import Fit

DRAWS = 2000
EXAMPLES = """Examples:

  smelt-match gain

  smelt-match gain endpoints.csv --budget 1e20,1e21 --sparsity 0.95

  smelt-match gain endpoints.csv --by source --draws 200

  smelt-match gain endpoints.csv --draws 200 --charts charts

  smelt-match gain --surface surface.yaml"""


def gain(
    endpoints: Annotated[
        Path | None, typer.Argument(help="End points to fit and to bootstrap; without, --surface or the paper's.")
    ] = None,
    surface: Annotated[
        Path | None, typer.Option("--surface", metavar="FILE", help="A file of surfaces, as `fit` writes.")
    ] = None,
    target: Annotated[str, typer.Option("--target", help="The architecture that may save compute.")] = "smelt",
    reference: Annotated[str, typer.Option("--reference", help="The one it is compared with.")] = "baseline",
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="C,…", help="Training FLOPs; default 1e20,1e21,1e22, --by 1e21.")
    ] = None,
    sparsity: Annotated[
        str | None, typer.Option("--sparsity", metavar="S,…", help="Default 0.85,0.95,0.97, with --by 0.95.")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Gain on each source, category, or quartile of the reference's loss.")
    ] = None,
    sources: laws.Sources = None,
    categories: Annotated[
        Path | None, typer.Option("--categories", metavar="FILE", help="YAML with the sources of each category.")
    ] = None,
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    shared: laws.Shared = None,
    fix: laws.Fix = None,
    draws: laws.Draws = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Resample the cells of the two apart from each other.")
    ] = False,
    seed: laws.Seed = None,
    charts: Annotated[
        Path | None,
        typer.Option(
            "--charts",
            metavar="DIR",
            parser=options.place("--charts"),
            help="Draw there, as SVG and PNG with their CSV.",
        ),
    ] = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Show what the target saves at the same loss (CE Gain), with intervals, and where the claim is extrapolated.

    With end points, both surfaces are fitted and a cell bootstrap gives 95 % intervals.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report.laws import CONVENTIONS
    from smelt_match.report.savings import COMPARED

    shown = options.format_option(form)
    options.check_output(output, force)
    budgets = laws.numbers_option("--budget", budget or ("1e21" if by else "1e20,1e21,1e22"), 1e3, 1e40)
    sparsities = laws.numbers_option("--sparsity", sparsity or ("0.95" if by else "0.85,0.95,0.97"), 0, 1 - 1e-9)
    if by is not None:
        _check_by(by, endpoints, categories, budgets, sparsities)
    else:
        _idle("goes with --by", {"--sources": sources, "--categories": categories})
    if endpoints is not None and surface is not None:
        raise BadInput("ENDPOINTS and --surface exclude each other")
    if charts is not None:
        _check_charts(charts, endpoints, by, force)
    given: list[str] = []
    trace: dict[str, Any] = {}
    cells: Row = {"target": target, "reference": reference, "convention": CONVENTIONS["surface"]}
    if endpoints is None:
        _idle("needs ENDPOINTS to fit", {
            "--column": column, "--exclude": exclude, "--shared": shared, "--fix": fix, "--draws": draws,
            "--unpaired": unpaired or None, "--seed": seed,
        })  # fmt: skip
        comparison = _of_surfaces(surface, target, reference, budgets, sparsities)
    else:
        common, fixed = laws.shared_option(shared), laws.fix_option(fix)
        found = laws.read_end_points(endpoints, "surface", column, exclude, list(fixed))
        _both_there(found.architectures, target, reference, str(endpoints))
        names = (target, reference)
        losses, members = ({}, {}) if by is None else _grouped(found, by, sources or laws.ALL_SOURCES, categories)
        fits = laws.fit_all(found, "surface", names, common, fixed, "newton")
        draws, seed = DRAWS if draws is None else draws, seed or 0
        drawn = laws.drawn(found, fits, draws, seed, not unpaired) if draws else None
        given = laws.trace_words(found, "surface", fixed)
        trace = {"shared": common, **laws.trace_document(found, "surface", fixed)}
        cells |= laws.trace_row(found, "surface", fixed, common)
        if drawn is not None:
            cells |= {"draws": len(drawn), "paired": drawn.paired, "seed": seed}
        if common:
            given = [f"shared: {', '.join(common)}", *given]
        if by is not None:
            subsets = _subsets(found, fits, by, losses, members, budgets[0], sparsities[0], drawn)
            cells |= {"flops": subsets.C, "sparsity": subsets.S}
            rows = [row | cells for row in subsets.rows()]
            text = to_json(_traced(subsets.document(), trace, seed)) if shown == "json" else render(
                [*subsets.columns(), *COMPARED], rows, shown, "\n".join([*subsets.words(), *given])
            )  # fmt: skip
            options.emit(text, output, force)
            return
        comparison = _of_fits(found, fits, budgets, sparsities, drawn, (common, fixed))
    if charts is not None:
        from smelt_match.report.charts import charts as charts_of
        from smelt_match.report.charts import write_charts

        belonging = {name: found.at_levels(name, sparsities) for name in fits}
        for path in write_charts(charts_of(comparison, sparsities, belonging), charts, force):
            typer.echo(f"wrote {path}", err=True)
    if shown == "json":
        text = to_json(_traced(comparison.document(), trace, seed))
    else:
        rows = [row | cells for row in comparison.rows()]
        note = "\n".join([*comparison.words(), *given])
        text = render([*comparison.columns(), *COMPARED], rows, shown, note)
    options.emit(text, output, force)


def _idle(why: str, values: Mapping[str, object]) -> None:
    """Refuse options that were given and cannot act."""
    given = [option for option, value in values.items() if value is not None]
    if given:
        raise BadInput("\n".join(f"{option} {why}" for option in given))


def _traced(document: dict[str, Any], trace: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """The document with what was given to the fit and to the bootstrap."""
    if document["bootstrap"] is not None:
        document["bootstrap"] |= {"seed": seed}
    return document | trace


def _both_there(known: list[str], target: str, reference: str, where: str) -> None:
    for option, name in (("--target", target), ("--reference", reference)):
        if name not in known:
            hint = f"{close_names(name, known)}; {option} names another"
            raise BadInput(f"{where}: no architecture {name[:60]!r}", hint)
    if target == reference:
        raise BadInput(f"--target and --reference are both {target!r}")


def _of_surfaces(
    path: Path | None, target: str, reference: str, budgets: list[float], sparsities: list[float]
) -> Comparison:
    surfaces = laws.surfaces_option(path)
    _both_there(list(surfaces), target, reference, "the paper's surfaces" if path is None else str(path))
    pair = (surfaces[target], surfaces[reference])
    return _compared(pair, {}, budgets, sparsities)


def _check_by(by: str, path: Path | None, categories: Path | None, budgets: list[float], S: list[float]) -> None:
    laws.choice("--by", by, ("source", "category", "quartile"))
    if path is None:
        raise BadInput(f"--by {by} needs ENDPOINTS with a loss column for each source")
    if (by == "category") != (categories is not None):
        raise BadInput("--by category and --categories FILE need each other")
    if len(budgets) > 1 or len(S) > 1:
        raise BadInput("--by takes one --budget and one --sparsity")


def _check_charts(folder: Path, path: Path | None, by: str | None, force: bool) -> None:
    from smelt_match.report.charts import check_folder, need_matplotlib

    if path is None or by is not None:
        raise BadInput("--charts needs ENDPOINTS, and goes without --by")
    need_matplotlib()
    folder.mkdir(exist_ok=True)
    check_folder(folder, force)


def _grouped(
    found: EndPoints, by: str, pattern: str, categories: Path | None
) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """The loss of each subset at every row, and the sources of each category."""
    from smelt_match.scaling.groups import read_categories, weighted_mean

    losses = found.sources(pattern)
    if by == "quartile" and len(losses) < 4:
        raise BadInput(f"--by quartile: {len(losses)} sources, at least 4 make quartiles")
    if categories is None:
        return losses, {}
    groups = read_categories(categories, list(losses))
    members = {name: list(columns) for name, columns in groups.items()}
    return {name: weighted_mean(losses, columns) for name, columns in groups.items()}, members


def _subsets(
    found: EndPoints,
    fits: Mapping[str, Fit],
    by: str,
    losses: Mapping[str, Array],
    members: Mapping[str, list[str]],
    C: float,
    S: float,
    drawn: Draws | None,
) -> Subsets:
    import numpy as np

    from smelt_match.report.subsets import Subsets
    from smelt_match.scaling.subsets import differences, quartile_gains, subset_gains

    target, reference = fits
    pairs = {name: (loss[found.rows(target)], loss[found.rows(reference)]) for name, loss in losses.items()}
    gains = subset_gains((fits[target], fits[reference]), (target, reference), pairs, C, S, drawn)
    if by == "quartile":
        theirs = np.array([pair[1] for pair in pairs.values()]).T
        gains = quartile_gains(gains, theirs, None if drawn is None else drawn.weight[reference])
    return Subsets(by, (target, reference), C, S, gains, members, differences(gains), drawn)


def _of_fits(
    found: EndPoints,
    fits: Mapping[str, Fit],
    budgets: list[float],
    sparsities: list[float],
    drawn: Draws | None,
    given: tuple[list[str], dict[str, float]],
) -> Comparison:
    from smelt_match.scaling.fit import certified, fit

    shared, fixed = given
    floor, reason = None, ""
    try:
        parts = {name: found.points(name) for name in fits}
        floor = certified(fit(parts, [*shared, "E"], fixed), "one E for both")
    except AnswerIsNo as error:
        reason = error.message.replace("\n", "; ")
    source = f"fitted to {Path(found.table.where).name} by smelt-match"
    target, reference = (one.surface(name, source) for name, one in fits.items())
    return _compared((target, reference), fits, budgets, sparsities, drawn, floor, reason)


def _compared(
    pair: tuple[Surface, Surface],
    fits: Mapping[str, Fit],
    budgets: list[float],
    sparsities: list[float],
    drawn: Draws | None = None,
    floor: Fit | None = None,
    reason: str = "",
) -> Comparison:
    from smelt_match.report.savings import Comparison
    from smelt_match.scaling.compare import savings
    from smelt_match.scaling.frontier import Coefficients, turns

    both = (Coefficients.of(pair[0]), Coefficients.of(pair[1]))
    common = None if floor is None else (floor.coefficients(pair[0].name), floor.coefficients(pair[1].name))
    return Comparison(
        *pair, savings(*pair, budgets, sparsities, drawn, common), {S: turns(*both, S) for S in sparsities}, fits,
        drawn, None if common is None else float(common[0].E), reason,
    )  # fmt: skip
