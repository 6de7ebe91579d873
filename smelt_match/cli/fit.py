"""``smelt-match fit``: scaling surfaces from training end points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import BadInput

if TYPE_CHECKING:
    from smelt_match.scaling.fit import Optimizer

EXAMPLES = """Examples:

  smelt-match fit endpoints.csv

  smelt-match fit endpoints.csv --exclude sparsity=0 -o surface.yaml

  smelt-match fit endpoints.csv --shared a,b,c --format json"""


def fit(
    endpoints: laws.EndPointsFile,
    form: laws.Form = "surface",
    column: laws.Columns = None,
    exclude: laws.Exclude = None,
    shared: laws.Shared = None,
    fix: laws.Fix = None,
    optimizer: laws.OptimizerName = "newton",
    shape: Annotated[
        str | None,
        typer.Option("--format", "-f", help="table, md, tex, csv, json, or yaml: a surface file; yaml for -o X.yaml."),
    ] = None,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Fit Eq. 2 to the end points of each architecture, with a certificate.

    Huber loss (delta 1e-3) on log-loss. A fit whose certificate does not pass is an error (exit 1), not a table.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import laws as report

    if shape is None:
        shape = "yaml" if output is not None and output.suffix in (".yaml", ".yml") else "table"
    chosen = shape if shape == "yaml" else options.format_option(shape)
    options.check_output(output, force)
    laws.choice("--form", form, ("surface", "chinchilla", "phi"))
    laws.choice("--optimizer", optimizer, ("newton", "lbfgsb"))
    common, fixed = laws.shared_option(shared), laws.fix_option(fix)
    found = laws.read_end_points(endpoints, form, column, exclude, list(fixed))
    if common and len(found.architectures) < 2:
        raise BadInput(f"--shared {shared}: {endpoints} has one architecture only")
    fits = laws.fit_all(found, form, found.architectures, common, fixed, cast("Optimizer", optimizer))
    if chosen == "yaml":
        source = f"fitted to {endpoints.name} by smelt-match"
        text = report.surfaces_yaml([one.surface(arch, source) for arch, one in fits.items()])
    elif chosen == "json":
        text = to_json(report.fit_document(fits, form, common))
    else:
        note = f"{report.FORMS[form]}\nminimised: {report.OBJECTIVE}"
        note += f"; shared: {', '.join(common)}" if common else ""
        text = render(report.FIT, report.fit_rows(fits), chosen, note)  # type: ignore[arg-type]
    options.emit(text, output, force)
