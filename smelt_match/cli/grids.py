"""``smelt-match grids``: the search grids that ship with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from smelt_match.cli import options

EXAMPLES = """Examples:

  smelt-match grids

  smelt-match grids bf16"""


def grids(
    name: Annotated[str | None, typer.Argument(help="A grid to show as YAML: the way to start your own.")] = None,
    form: options.OutputFormat = "table",
) -> None:
    """List the search grids, or show one as a YAML file to start from."""
    from smelt_match.export import columns
    from smelt_match.export.document import SCHEMA_VERSION, to_json
    from smelt_match.export.table import render
    from smelt_match.match.grid import find_grid, shipped_grids

    shown = options.format_option(form)
    chosen = list(shipped_grids().values()) if name is None else [find_grid(name)]
    dumped = [grid.model_dump(exclude_none=True) for grid in chosen]
    if shown == "json":
        options.emit(to_json({"schema_version": SCHEMA_VERSION, "grids": dumped}), None, False)
    elif name is None:
        options.emit(render(columns.GRIDS, dumped, shown), None, False)
    else:
        import io

        from ruamel.yaml import YAML

        stream = io.StringIO()
        yaml = YAML()
        yaml.default_flow_style = None
        yaml.width = 200
        yaml.dump(dumped[0], stream)
        options.emit(stream.getvalue(), None, False)
