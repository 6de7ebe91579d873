"""Options and steps that the commands about scaling laws share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smelt_match.errors import BadInput

if TYPE_CHECKING:
    from smelt_match.budget.surface import Surface
    from smelt_match.export.table import Row
    from smelt_match.scaling.bootstrap import Draws as BootstrapDraws
    from smelt_match.scaling.endpoints import EndPoints
    from smelt_match.scaling.fit import Fit, Optimizer

Form = Annotated[
    str, typer.Option("--form", help="surface (F, S, D), chinchilla (N, D), phi (N_once, N_rec, r, D), isoflop (N, D).")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", "-c", metavar="ROLE=HEADER", help="Which column plays a role; may be repeated."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", "-x", metavar="COND", help="Leave rows out, as sparsity=0 or tokens<1e9; repeatable."),
]
Shared = Annotated[
    str | None,
    typer.Option("--shared", metavar="a,b,c", help="What all architectures have in common, out of E, a, b, c."),
]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", metavar="a=VALUE", help="An exponent that is given; repeatable.")
]
OptimizerName = Annotated[
    str, typer.Option("--optimizer", help="newton, or lbfgsb: the paper's, from the same starts.")
]
Sources = Annotated[
    str | None, typer.Option("--sources", metavar="PATTERN", help="With --by: columns of losses; default loss_*.")
]
ALL_SOURCES = "loss_*"
Draws = Annotated[
    int | None, typer.Option("--draws", min=0, max=100_000, help="Bootstrap draws; 0 for none; default 2000.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the bootstrap; default 0.")]
EndPointsFile = Annotated[
    Path,
    typer.Argument(
        help="CSV or JSON lines with run, arch, scale, sparsity, flops_per_token, tokens, loss, and perhaps weight."
    ),
]


def read_end_points(
    path: Path, form: str, columns: Sequence[str] | None, exclude: Sequence[str] | None, fixed: Sequence[str] = ()
) -> EndPoints:
    """The end points of a file; what a reader should know goes to stderr."""
    from smelt_match.scaling.endpoints import end_points, excluded, mapping
    from smelt_match.scaling.table import read_table

    headers = mapping(columns or [])
    found = end_points(excluded(read_table(path), exclude or []), form, headers, fixed)
    for text in found.warnings:
        typer.echo(f"warning: {text}", err=True)
    return found


def _weighted(found: EndPoints, form: str) -> bool:
    return form != "isoflop" and "weight" in found.values and bool((found.values["weight"] != 1).any())


def excluded_document(found: EndPoints) -> dict[str, Any]:
    """The rows that were left out and why, as fields of a document."""
    left_out = [{"condition": text, "rows": rows} for text, rows in found.table.left_out.items()]
    return {"excluded": left_out, "num_rows_excluded": found.table.num_left_out}


def excluded_words(found: EndPoints) -> list[str]:
    """The same as a line under a table; none where no row was to be left out."""
    if not found.table.left_out:
        return []
    return [f"rows left out: {found.table.num_left_out:,} ({_conditions(found)})"]


def excluded_row(found: EndPoints) -> Row:
    """The same as cells of each row of CSV."""
    return {"excluded": _conditions(found), "num_rows_excluded": found.table.num_left_out}


def _conditions(found: EndPoints) -> str:
    return ", ".join(f"{text}: {rows:,}" for text, rows in found.table.left_out.items())


def trace_document(found: EndPoints, form: str, fixed: Mapping[str, float]) -> dict[str, Any]:
    """What was given beside the rows, as fields of a document."""
    return {"fixed": dict(fixed), **excluded_document(found), "weighted": _weighted(found, form)}


def trace_words(found: EndPoints, form: str, fixed: Mapping[str, float]) -> list[str]:
    """What was given beside the rows, as lines under a table; none where nothing was."""
    lines = [f"given, not fitted: {_fixed_words(fixed)}"] if fixed else []
    lines += excluded_words(found)
    if _weighted(found, form):
        lines.append(f"rows weighted by column {found.headers['weight']!r}")
    return lines


def trace_row(found: EndPoints, form: str, fixed: Mapping[str, float], shared: Sequence[str] = ()) -> Row:
    """How it was counted and what was given beside the rows, as cells of each row of CSV."""
    from smelt_match.report.laws import CONVENTIONS

    return {
        "convention": CONVENTIONS[form], "shared": ", ".join(shared), "fixed": _fixed_words(fixed),
        **excluded_row(found), "weighted": _weighted(found, form),
    }  # fmt: skip


def _fixed_words(fixed: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in fixed.items())


def surfaces_option(path: Path | None) -> dict[str, Surface]:
    """The surfaces of a file, or the paper's."""
    from smelt_match.budget.surface import read_surfaces, shipped_surfaces

    return shipped_surfaces() if path is None else read_surfaces(path)


def choice(option: str, text: str, known: Sequence[str]) -> str:
    """One of several words."""
    from smelt_match.errors import close_names

    if text not in known:
        raise BadInput(f"{option} {text[:40]!r} is not one of {', '.join(known)}", close_names(text[:40], known))
    return text


def shared_option(text: str | None) -> list[str]:
    """``a,b,c`` as names."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        choice("--shared", name, ("E", "a", "b", "c"))
    return names


def fix_option(texts: Sequence[str] | None) -> dict[str, float]:
    """``a=0.37`` options as numbers."""
    from smelt_match.scaling.design import EXPONENT_RANGE
    from smelt_match.scaling.table import number

    found: dict[str, float] = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        exponent = choice("--fix", name.strip(), ("a", "b", "c"))
        low, high = EXPONENT_RANGE[exponent]
        parsed = number(value) if sign else None
        if parsed is None or not low <= parsed <= high:
            raise BadInput(f"--fix {text[:40]!r}: write {exponent}=VALUE with a value from {low:g} to {high:g}")
        found[exponent] = parsed
    return found


def fit_all(
    found: EndPoints,
    form: str,
    names: Sequence[str],
    shared: Sequence[str],
    fixed: dict[str, float],
    optimizer: Optimizer,
) -> dict[str, Fit]:
    """A certified fit of each of some architectures; one for all where they share something."""
    from smelt_match.scaling.fit import certified, fit

    if form == "chinchilla":
        fixed = {"b": 0.0} | fixed
    parts = {arch: found.points(arch) for arch in names}
    if shared and len(parts) > 1:
        joint = certified(fit(parts, shared, fixed, optimizer), " and ".join(parts))
        return dict.fromkeys(parts, joint)
    return {arch: certified(fit({arch: points}, (), fixed, optimizer), arch) for arch, points in parts.items()}


def drawn(found: EndPoints, fits: dict[str, Fit], draws: int, seed: int, paired: bool) -> BootstrapDraws:
    """The cell bootstrap of two architectures."""
    from smelt_match.scaling.bootstrap import cell_bootstrap

    target, reference = fits
    if paired:
        ours, theirs, _ = found.paired_cells(target, reference)
    else:
        ours, theirs = found.cells(target)[1], found.cells(reference)[1]
    return cell_bootstrap(fits, {target: ours, reference: theirs}, draws, seed, paired)


def numbers_option(option: str, text: str, low: float, high: float, limit: int = 100) -> list[float]:
    """``1e20,1e21`` as numbers within a range."""
    from smelt_match.scaling.table import number

    found: list[float] = []
    for part in text.split(","):
        value = number(part)
        if value is None or not low <= value <= high:
            raise BadInput(f"{option} {part[:40]!r}: write numbers from {low:g} to {high:g}, separated by commas")
        found.append(value)
    if len(found) > limit:
        raise BadInput(f"{option}: {len(found)} numbers, more than {limit}")
    return found
