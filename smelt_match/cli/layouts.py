"""``smelt-match layouts``: which loops can keep the KV cache."""

from __future__ import annotations

from typing import Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput

EXAMPLES = """Examples:

  smelt-match layouts --baseline 200m_s95

  smelt-match layouts -b 200m_s95 --depths 10-14 --free-kv-heads"""


def layouts(
    baseline: Annotated[str, typer.Option("--baseline", "-b", help="A spec's name, a YAML file, or a config.json.")],
    max_count: Annotated[int, typer.Option("--max-count", min=2, max=64, help="Most visits of a looped layer.")] = 4,
    depths: Annotated[
        str | None, typer.Option("--depths", metavar="A-B", help="Physical depths; default: the baseline's.")
    ] = None,
    free_kv_heads: Annotated[bool, typer.Option("--free-kv-heads", help="Let the KV heads change.")] = False,
    one_sided: Annotated[bool, typer.Option("--one-sided", help="Never exceed the baseline's KV cache.")] = False,
    grid: Annotated[str | None, typer.Option("--grid", help="A grid's name or YAML file.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to show.")] = 40,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """List loops of the middle layers by how close they can keep the KV cache, the resonant ones first.

    The KV floor depends on the layout and the head sizes alone, so it is known before anything is solved.
    """
    from smelt_match.budget.conventions import convention
    from smelt_match.budget.count import context_of
    from smelt_match.export import columns
    from smelt_match.export.document import SCHEMA_VERSION, layout_row, to_json
    from smelt_match.export.table import render
    from smelt_match.match.dense import as_experts
    from smelt_match.match.grid import find_grid
    from smelt_match.match.layouts import layout_floors
    from smelt_match.match.problem import Question
    from smelt_match.spec.family import countable, expand

    shown = options.format_option(form)
    options.check_output(output, force)
    entries = expand(baseline)
    if len(entries) != 1:
        raise BadInput(f"--baseline {baseline}: stands for {len(entries)} models; name one")
    spec = countable(entries[0])
    has_experts = bool(spec.num_experts) or not spec.visits.is_unlooped
    question = Question(
        baseline=spec if has_experts else as_experts(spec, 1)[0],  # floors depend on heads alone
        layout=spec.visits, convention=convention("paper"), context=context_of(spec),
        grid=find_grid(grid if grid is not None else entries[0].grid or "bf16"),
        heads="free-kv" if free_kv_heads else "kept", one_sided=one_sided,
    )  # fmt: skip
    rows = layout_floors(question, _depths(depths, spec.num_layers), max_count)
    table = [layout_row(row) for row in rows]
    if shown == "json":
        plain = [
            {
                **row, "kv_uniform": float(row["kv_uniform"]),
                "kv_split": None if isinstance(row["kv_split"], str) else float(row["kv_split"]),
                "split_unavailable": row["kv_split"] if isinstance(row["kv_split"], str) else None,
            }
            for row in table
        ]  # fmt: skip
        text = to_json({"schema_version": SCHEMA_VERSION, "baseline": spec.name, "layouts": plain})
    else:
        resonant = sum(row.resonant for row in rows)
        note = (
            f"{spec.name}: {len(rows)} layouts, {resonant} of them resonant (KV floor exactly 0 with one head "
            f"geometry); {min(limit, len(rows))} shown; KV cache with one slot for each visit"
        )
        text = render(columns.LAYOUTS, table if shown == "csv" else table[:limit], shown, note)
    options.emit(text, output, force)


def _depths(text: str | None, default: int) -> range:
    if text is None:
        return range(default, default + 1)
    first, _, last = text.partition("-")
    if not text.isascii() or not (first.isdigit() and (last.isdigit() or not last)) or len(text) > 12:
        raise BadInput(f"--depths {text[:40]!r}: write 12 or 10-14")
    low, high = int(first), int(last or first)
    if low > high:
        raise BadInput(f"--depths {text}: {low} is more than {high}")
    if not 1 <= low <= high <= 512 or high - low > 64:
        raise BadInput(f"--depths {text}: at most 65 depths between 1 and 512")
    return range(low, high + 1)
