"""``smelt-match fit``: scaling surfaces from training end points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import BadInput

if TYPE_CHECKING:
    from smelt_match.scaling.endpoints import EndPoints
    from smelt_match.scaling.fit import Fit, Optimizer

EXAMPLES = """Examples:

  smelt-match fit endpoints.csv

  smelt-match fit endpoints.csv --exclude sparsity=0 -o surface.yaml

  smelt-match fit endpoints.csv --shared a,b,c --format json

  smelt-match fit endpoints.csv --by source"""


def fit(
    endpoints: laws.EndPointsFile,
    form: laws.Form = "surface",
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    shared: laws.Shared = None,
    fix: laws.Fix = None,
    optimizer: laws.OptimizerName = "newton",
    by: Annotated[
        str | None, typer.Option("--by", help="source: E, A, K of each source too, with the exponents of the loss.")
    ] = None,
    sources: laws.Sources = None,
    shape: Annotated[
        str | None,
        typer.Option("--format", "-f", help="table, md, tex, csv, json, or yaml: a surface file; yaml for -o X.yaml."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            parser=options.place("--output"),
            help="Write there; .yaml is a surface file, other names keep --format.",
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Fit a scaling surface to the end points of each architecture, with a certificate.

    The surface is Eq. 2; Huber loss (delta 1e-3) on log-loss. A fit whose certificate does not pass is an error
    (exit 1), not a table.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import laws as report

    if shape is None:
        shape = "yaml" if output is not None and output.suffix in (".yaml", ".yml") else "table"
    chosen = shape if shape == "yaml" else options.format_option(shape)
    options.check_output(output, force)
    laws.choice("--form", form, ("surface", "chinchilla", "phi", "isoflop"))
    laws.choice("--optimizer", optimizer, ("newton", "lbfgsb"))
    if by is not None:
        laws.choice("--by", by, ("source",))
        if chosen == "yaml":
            raise BadInput("--by source does not go into a surface file", "leave --by out, or choose another --format")
    elif sources is not None:
        raise BadInput("--sources goes with --by source")
    common, fixed = laws.shared_option(shared), laws.fix_option(fix)
    if form == "chinchilla" and "b" in {*common, *fixed}:
        option = "--fix" if "b" in fixed else "--shared"
        raise BadInput(f"{option} b: --form chinchilla has no b", "its loss does not depend on sparsity")
    found = laws.read_end_points(endpoints, form, column, exclude, list(fixed))
    if form in ("phi", "isoflop"):
        if common or fixed or by is not None or chosen == "yaml" or optimizer != "newton":
            raise BadInput(f"--form {form} goes with none of --shared, --fix, --by, --optimizer and --format yaml")
        options.emit((_recurrence if form == "phi" else _isoflop)(found, chosen), output, force)
        return
    if common and len(found.architectures) < 2:
        raise BadInput(f"--shared {shared}: {endpoints} has one architecture only")
    given = laws.trace_words(found, form, fixed)
    fits = laws.fit_all(found, form, found.architectures, common, fixed, cast("Optimizer", optimizer))
    if by is not None:
        text = _by_source(found, fits, form, (common, fixed), sources or laws.ALL_SOURCES, chosen)
    elif chosen == "yaml":
        source = "; ".join([f"fitted to {endpoints.name} by smelt-match", *given])
        text = report.surfaces_yaml([one.surface(arch, source) for arch, one in fits.items()])
    elif chosen == "json":
        text = to_json(report.fit_document(fits, form, common) | laws.trace_document(found, form, fixed))
    else:
        note = f"{report.FORMS[form]}\nminimised: {report.OBJECTIVE}"
        note += f"; shared: {', '.join(common)}" if common else ""
        note = "\n".join([note, *given])
        rows = [row | laws.trace_row(found, form, fixed, common) for row in report.fit_rows(fits)]
        text = render([*report.FIT, *report.GIVEN], rows, chosen, note)  # type: ignore[arg-type]
    options.emit(text, output, force)


def _by_source(
    found: EndPoints,
    fits: dict[str, Fit],
    form: str,
    given: tuple[list[str], dict[str, float]],
    pattern: str,
    chosen: str,
) -> str:
    """The sources of each architecture, fitted with the exponents of its loss."""
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import laws as report
    from smelt_match.scaling.subsets import subset_fit

    common, fixed = given
    losses = found.sources(pattern)
    subsets = {
        arch: {name: subset_fit(one, arch, loss[found.rows(arch)], name) for name, loss in losses.items()}
        for arch, one in fits.items()
    }
    if chosen == "json":
        aggregate = report.fit_document(fits, form, common) | laws.trace_document(found, form, fixed)
        return to_json(report.subset_document(subsets, aggregate))
    note = "\n".join([report.FORMS[form], report.SUBSET_NOTE, *laws.trace_words(found, form, fixed)])
    rows = [row | laws.trace_row(found, form, fixed, common) for row in report.subset_rows(subsets)]
    return render([*report.SUBSETS, *report.GIVEN], rows, chosen, note)  # type: ignore[arg-type]


def _recurrence(found: EndPoints, chosen: str) -> str:
    """The recurrence law of all rows together."""
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import laws as report
    from smelt_match.scaling.recurrence import Recurrences, fit_recurrence

    v = found.values
    weight = v.get("weight", v["loss"] * 0 + 1)
    data = Recurrences(v["params_once"], v["params_recurrent"], v["recurrences"], v["tokens"], v["loss"], weight)
    result = fit_recurrence(data)
    if chosen == "json":
        return to_json(report.recurrence_document(result) | laws.trace_document(found, "phi", {}))
    note = "\n".join([report.RECURRENCE_NOTE, *laws.trace_words(found, "phi", {})])
    row = report.recurrence_row(result) | laws.trace_row(found, "phi", {})
    return render([*report.RECURRENCE, *report.GIVEN], [row], chosen, note)  # type: ignore[arg-type]


def _isoflop(found: EndPoints, chosen: str) -> str:
    """The optimal sizes of each architecture."""
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import laws as report
    from smelt_match.scaling.isoflop import isoflop

    v = found.values
    curves = {
        arch: isoflop(*(v[name][found.rows(arch)] for name in ("params", "tokens", "loss")))
        for arch in found.architectures
    }
    if chosen == "json":
        return to_json(report.isoflop_document(curves) | laws.trace_document(found, "isoflop", {}))
    note = "\n".join([report.isoflop_note(curves), *laws.trace_words(found, "isoflop", {})])
    rows = [row | laws.trace_row(found, "isoflop", {}) for row in report.isoflop_rows(curves)]
    return render([*report.ISOFLOP, *report.GIVEN], rows, chosen, note)  # type: ignore[arg-type]
