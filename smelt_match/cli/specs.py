"""``smelt-match specs``: list, show and start model specifications."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smelt_match.cli import options
from smelt_match.errors import AnswerIsNo

if TYPE_CHECKING:
    from smelt_match.spec.family import Entry
    from smelt_match.spec.model import Head

app = typer.Typer(help="List, show and start model specifications.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", epilog="Examples:\n\n  smelt-match specs list\n\n  smelt-match specs list '*_s95'")
def list_specs(
    pattern: Annotated[str | None, typer.Argument(help="A family or a pattern.")] = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """List the specs that ship with the package, with their counts."""
    from smelt_match.budget.conventions import convention
    from smelt_match.budget.count import count
    from smelt_match.export import columns
    from smelt_match.export.document import SCHEMA_VERSION, counted_json, counted_row, printed_row, to_json
    from smelt_match.export.table import render
    from smelt_match.spec.family import expand, shipped
    from smelt_match.spec.model import IncompleteSystem, ModelSpec

    shown = options.format_option(form)
    options.check_output(output, force)
    entries = list(shipped().values()) if pattern is None else expand(pattern)
    rule = convention("paper")
    if shown == "json":
        results = [
            {"family": e.family, **counted_json(count(e.spec, rule))} if isinstance(e.spec, ModelSpec)
            else {"family": e.family, "name": e.spec.name, "config": None, "budget": None,
                  "missing": e.spec.missing if isinstance(e.spec, IncompleteSystem) else None}
            for e in entries
        ]  # fmt: skip
        options.emit(
            to_json({"schema_version": SCHEMA_VERSION, "convention": "paper", "specs": results}),
            output,
            force,
        )
        return
    rows = []
    for entry in entries:
        row = {"name": entry.spec.name, "family": entry.family}
        if isinstance(entry.spec, ModelSpec):
            counted = count(entry.spec, rule)
            row |= {"layout": str(entry.spec.visits), **counted_row(counted), "control": counted.control}
        else:
            why = "not determinable" if isinstance(entry.spec, IncompleteSystem) else "printed figures only"
            row |= {"layout": why, **printed_row(entry.spec)}
        rows.append(row)
    options.emit(render(columns.SPECS, rows, shown), output, force)


@app.command("show", epilog="Examples:\n\n  smelt-match specs show 200m_s95\n\n  smelt-match specs show 200m_s0_smelt")
def show(
    spec: Annotated[str, typer.Argument(help="A spec's name, a family, a pattern, a YAML file, or a config.json.")],
) -> None:
    """Show a spec: its fields, its ledger, and its published figures against the counts.

    Exit 1 if a published figure does not agree.
    """
    from smelt_match.spec.family import expand

    wrong = [name for entry in expand(spec) for name in _show(entry)]
    if wrong:
        raise AnswerIsNo("\n".join(wrong), "the counts above disagree with the figures that the spec expects")


def _show(entry: Entry) -> list[str]:
    """Print one spec; returns the figures that disagree."""
    from smelt_match.budget.conventions import convention
    from smelt_match.budget.count import count
    from smelt_match.export import columns
    from smelt_match.export.document import convention_note, ledger_rows
    from smelt_match.export.table import render
    from smelt_match.spec.model import IncompleteSystem, ModelSpec

    spec = entry.spec
    for name, value in _stated(spec).items():
        if value != "":
            typer.echo(f"{name}: {value}")
    if isinstance(spec, IncompleteSystem):
        typer.echo(spec.reason)
    if not isinstance(spec, ModelSpec):
        for name, figure in spec.expected.items():
            typer.echo(f"printed {name}: {figure.text}")
        return []
    counted = count(spec, convention("paper"))
    note = convention_note(counted.ledger)
    typer.echo("\n" + render(columns.LEDGER, ledger_rows(counted.ledger), "table", note))
    typer.echo(f"S = {float(counted.sparsity) * 100:.2f} % by Eq. 1, measured against {counted.control}")
    return _compare(spec)


def _stated(spec: Head) -> dict[str, Any]:
    """The fields that differ from their defaults, each with all that is stated within it, and the layout."""
    from smelt_match.spec.model import ModelSpec, PublishedRow

    differ = spec.model_dump(exclude={"expected"}, exclude_defaults=True)
    stated = spec.model_dump(include=set(differ), exclude_unset=True)
    layout = {"layout": spec.layout} if isinstance(spec, (ModelSpec, PublishedRow)) else {}
    return {"name": spec.name} | layout | stated


def _compare(spec: Head) -> list[str]:
    from smelt_match.export.expected import compare

    wrong = []
    for line in compare(spec):
        typer.echo(f"expected {line.name}: {line.printed}, {line.verdict}")
        if line.agrees is False:
            wrong.append(f"{spec.name}: {line.name} is printed as {line.printed}, {line.verdict}")
    return wrong


@app.command("init", epilog="Examples:\n\n  smelt-match specs init my-model.yaml\n\n  smelt-match count my-model.yaml")
def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", parser=options.place("PATH"), help="The YAML file to write.")],
    force: options.Force = False,
) -> None:
    """Write a commented spec file to start your own model from."""
    from smelt_match.files import write_atomic
    from smelt_match.spec.template import template

    write_atomic(path, template(), force)
    typer.echo(f"wrote {path}; next: smelt-match count {shlex.quote(str(path))}", err=True)
