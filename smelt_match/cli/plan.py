"""``smelt-match plan``: what to train with a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import laws, options
from smelt_match.errors import BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.report.plans import Resolution
    from smelt_match.scaling.planning import Candidate

EXAMPLES = """Examples:

  smelt-match plan --budget 1e20

  smelt-match plan --budget 1e21 --surface surface.yaml --only smelt

  smelt-match plan --budget 1e20 --resolve 0.005 --seed-spread 0.002"""


def plan(
    budget: Annotated[str, typer.Option("--budget", metavar="C", help="Training FLOPs.")],
    surface: Annotated[
        Path | None, typer.Option("--surface", metavar="FILE", help="Surfaces as `fit` writes; default: the paper's.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="NAME", help="One surface of the file.")] = None,
    sparsity: Annotated[str, typer.Option("--sparsity", metavar="S,…", help="Shares.")] = "0.85,0.95,0.97",
    models: Annotated[
        list[str] | None,
        typer.Option("--models", help="Specs, families, YAML, or JSON of `solve`; default: the paper's; repeatable."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="Models to show.")] = 3,
    resolve: Annotated[
        float | None, typer.Option("--resolve", metavar="NATS", help="Seeds that tell such a difference.")
    ] = None,
    seed_spread: Annotated[
        float | None, typer.Option("--seed-spread", metavar="NATS", help="Standard deviation over seeds.")
    ] = None,
    power: Annotated[float, typer.Option("--power", help="Chance to see the difference.")] = 0.8,
    level: Annotated[float, typer.Option("--level", help="Of the two-sided test.")] = 0.05,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Split a budget between model and tokens, and find the models nearest to that.

    Eq. 3. A surface named baseline is asked about unlooped models, one named smelt about looped ones, any other about
    all.
    """
    from smelt_match.export.document import to_json
    from smelt_match.export.table import render
    from smelt_match.report import plans as report
    from smelt_match.scaling.planning import choices

    shown = options.format_option(form)
    options.check_output(output, force)
    (C,) = laws.numbers_option("--budget", budget, 1e3, 1e40, limit=1)
    sparsities = laws.numbers_option("--sparsity", sparsity, 0, 1 - 1e-9)
    resolution = _resolution(resolve, seed_spread, power, level)
    surfaces = laws.surfaces_option(surface)
    if only is not None:
        if only not in surfaces:
            raise BadInput(f"--only {only[:60]!r}: no such surface", close_names(only[:60], surfaces))
        surfaces = {only: surfaces[only]}
    candidates = [one for text in models or ["smelt", "*_smelt"] for one in _candidates(text)]
    nearest = {
        name: choices(one, C, [model for model in candidates if _suits(name, model.layout)])[:top]
        for name, one in surfaces.items()
    }
    found = report.Plan(C, sparsities, list(surfaces.values()), nearest, resolution)
    if shown == "json":
        text = to_json(found.document())
    elif shown == "csv":
        text = render(report.CSV, found.csv_rows(), shown)
    else:
        text = render(report.ALLOCATION, found.allocation_rows(), shown) + "\n"
        text += render(report.CHOICES, found.choice_rows(), shown, "\n".join(found.words()))
    options.emit(text, output, force)


def _suits(surface: str, layout: str) -> bool:
    unlooped = layout == "none"
    return {"baseline": unlooped, "smelt": not unlooped}.get(surface, True)


def _resolution(difference: float | None, spread: float | None, chance: float, level: float) -> Resolution | None:
    from math import isfinite

    from smelt_match.report.plans import Resolution
    from smelt_match.scaling.planning import power, seeds_needed

    if difference is None and spread is None:
        return None
    if difference is None or spread is None:
        raise BadInput("--resolve and --seed-spread need each other",
                       "the spread is the standard deviation of the loss over training seeds")  # fmt: skip
    for option, value in (("--resolve", difference), ("--seed-spread", spread)):
        if not (isfinite(value) and 1e-9 <= value <= 1e3):
            raise BadInput(f"{option} {value:g}: nats, from 1e-9 to 1e3")
    for option, value in (("--power", chance), ("--level", level)):
        if not 0.001 <= value <= 0.999:
            raise BadInput(f"{option} {value:g}: from 0.001 to 0.999")
    seeds = seeds_needed(difference, spread, chance, level)
    return Resolution(difference, spread, seeds, power(difference, spread, seeds, level), level)


def _candidates(text: str) -> list[Candidate]:
    """Models by a spec's name, a family, a YAML file, a config.json, or JSON of `solve`, if they can be counted."""
    from smelt_match.budget.conventions import convention
    from smelt_match.budget.count import count
    from smelt_match.scaling.planning import Candidate
    from smelt_match.spec.family import expand
    from smelt_match.spec.model import ModelSpec

    path = Path(text)
    if path.suffix == ".json" and path.is_file():
        solved = _solved(path)
        if solved is not None:
            return solved
    found = []
    for entry in expand(text):
        if isinstance(entry.spec, ModelSpec):
            counted = count(entry.spec, convention("paper"))
            layout = "none" if entry.spec.visits.is_unlooped else str(entry.spec.visits)
            F, S = float(counted.ledger.budget.flops), float(counted.sparsity)
            if 0 <= S < 1:
                found.append(Candidate(entry.spec.name, layout, F, S))
    return found


def _solved(path: Path) -> list[Candidate] | None:
    """The matches of a document that `solve` wrote, or None for another document."""
    import json

    from smelt_match.files import read_text
    from smelt_match.scaling.planning import Candidate

    try:
        document = json.loads(read_text(path, "JSON file", limit=2**28))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or not {"matches", "results"} & set(document):
        return None
    found = []
    try:
        for result in document.get("results", [document]):
            if result["convention"]["name"] != "paper":
                raise BadInput(f"{path}: counted by convention {result['convention']['name']!r}, not 'paper'")
            for match in result["matches"]:
                F, S = float(match["budget"]["flops_train_per_token"]), float(match["sparsity"]["value"])
                if not (F > 0 and 0 <= S < 1):
                    raise ValueError
                found.append(Candidate(str(match["name"])[:100], str(result["layout"]["text"])[:100], F, S))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise BadInput(f"{path}: not a document that `solve --format json` wrote") from None
    return found
