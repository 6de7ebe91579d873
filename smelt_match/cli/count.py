"""``smelt-match count``: the ledger of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smelt_match.cli import options
from smelt_match.errors import BadInput, MissingExtra, SmeltMatchError

if TYPE_CHECKING:
    from smelt_match.budget.context import Context
    from smelt_match.budget.count import Counted
    from smelt_match.export.table import Format
    from smelt_match.measure.agreement import Agreement
    from smelt_match.spec.family import Entry

EXAMPLES = """Examples:

  smelt-match count 200m_s95

  smelt-match count 200m_s95_smelt --context 4096

  smelt-match count 200m_s95 --convention all

  smelt-match count "200m_*" --format csv

  smelt-match count 200m_s95 --measure

  smelt-match count Mixtral-8x7B-v0.1/config.json

  smelt-match count --verify"""


def count(
    spec: Annotated[
        str | None, typer.Argument(help="A spec's name, a family, a pattern, a YAML file, or a config.json.")
    ] = None,
    convention: options.ConventionName = "paper",
    include_head: options.IncludeHead = False,
    mean_context: options.MeanContext = None,
    context: options.ContextTokens = None,
    lengths: options.Lengths = None,
    window: options.Window = None,
    symbols: Annotated[bool, typer.Option("--symbols", help="Show formulas in symbols instead of numbers.")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Build and run the model without memory, and compare. Exit 1 if it differs."),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Count every published figure that ships anew. Exit 1 if one disagrees."),
    ] = False,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Count a model: stored, active and executed parameters, training FLOPs and KV cache, row by row.

    `--convention all` compares every named convention. A Hugging Face config, or a folder with one, is counted with
    every field that bears on a budget; a field that is neither used nor known to be harmless is refused.
    `--measure` builds the model and runs it on torch's meta device, and compares parameters, FLOPs and KV cache. A
    config that only transformers can build is measured in part: its parameters are compared, and nothing is run.
    `--verify` takes no spec: it counts what sources print for real models and for the shipped specs.
    """
    from smelt_match.budget.conventions import CONVENTIONS
    from smelt_match.budget.count import count as count_spec
    from smelt_match.export.document import SCHEMA_VERSION, count_json, to_json
    from smelt_match.spec.family import countable, expand
    from smelt_match.spec.model import ModelSpec

    shown = options.format_option(form)
    options.check_output(output, force)
    if measure and shown == "csv":
        raise BadInput("--measure: CSV holds one table", "use --format json")
    override = options.context_option(mean_context, context, lengths, window)
    if verify:
        asked = (spec, override) != (None, None) or measure or include_head or convention != "paper"
        _verify(asked, shown, output, force)
        return
    if spec is None:
        raise BadInput("Missing argument 'SPEC'", "name a model, such as 200m_s95, or add --verify")
    names = list(CONVENTIONS) if convention == "all" else [convention]
    rules = [options.convention_option(name, include_head) for name in names]
    entries = expand(spec)
    if len(entries) > 1:
        entries = [entry for entry in entries if isinstance(entry.spec, ModelSpec)] or entries
    counted: list[Counted] = []
    for model in map(countable, entries):
        options.need_vocabulary(include_head, model.name, model.vocab_size)
        counted += [count_spec(model, rule, override) for rule in rules]
    faults: list[SmeltMatchError] = []
    measured = [_measured(entry, spec, override, include_head, faults) for entry in entries] if measure else []
    if shown == "json":
        imported = [entry.imported for entry in entries for _ in rules]
        results = [count_json(item, source) for item, source in zip(counted, imported, strict=True)]
        for found, result in zip((found for found in measured for _ in rules), results, strict=False):
            result["measured"] = found.as_json()
        text = to_json({"schema_version": SCHEMA_VERSION, "results": results})
    elif len(entries) > 1:
        text = _list(counted, shown)
    elif len(rules) > 1:
        text = _conventions(counted, shown)
    else:
        text = _ledger(counted[0], shown, symbols)
    if shown == "table" and len(entries) == 1:
        text += _origin(entries[0])
    if measured and shown != "json":
        text += "\n" + _comparison(measured, shown)
    options.emit(text, output, force)
    if measured:
        from smelt_match.export.measured import refuse_difference

        refuse_difference(measured)
    for fault in faults:  # counts need no model: they are shown before it is said that none could be built
        raise fault


def _verify(asked: bool, shown: Format, output: Path | None, force: bool) -> None:
    """Every published figure that ships, counted anew under its own convention."""
    from smelt_match.export.document import SCHEMA_VERSION, to_json
    from smelt_match.export.published import (
        COLUMNS,
        refuse_disagreement,
        summary,
        verified_json,
        verified_rows,
        verify_all,
    )
    from smelt_match.export.table import render

    if asked:
        raise BadInput(
            "--verify: every published figure has its own model, convention and context",
            "leave out SPEC, --measure and the options of counting",
        )
    found = verify_all()
    if shown == "json":
        text = to_json({"schema_version": SCHEMA_VERSION, "figures": verified_json(found)})
    else:
        text = render(COLUMNS, verified_rows(found), shown, summary(found))
    options.emit(text, output, force)
    refuse_disagreement(found)


def _measured(
    entry: Entry, text: str, override: Context | None, head: bool, faults: list[SmeltMatchError]
) -> Agreement:
    """What was built and run, against its count under the paper's convention; why none was run goes into `faults`."""
    from smelt_match.budget.count import context_of
    from smelt_match.measure.agreement import Agreement, agreement, imported_agreement
    from smelt_match.spec.family import countable

    spec = countable(entry)
    wanted = context_of(spec, override)
    try:
        if entry.imported is not None:
            found = imported_agreement(spec, Path(text), wanted, head)
            if found.missing is not None:
                faults.append(found.missing)
            return found
        return agreement(spec, wanted, head)
    except (BadInput, MissingExtra) as error:
        faults.append(error)
        return Agreement(spec.name, (), "paper", reason=error.message.splitlines()[0].removeprefix(f"{spec.name}: "))


def _comparison(measured: list[Agreement], shown: Format) -> str:
    """One model component by component, or a line for each of several."""
    from smelt_match.export.measured import measured_text

    if len(measured) == 1:
        return measured_text(measured[0], shown)
    return "".join(f"{found.name}: {found.words}\n" for found in measured)


def _origin(entry: Entry) -> str:
    """Under the table of an imported config: the active counts in words, and what became of each field."""
    from smelt_match.budget.active import active_counts
    from smelt_match.export.imported import imported_lines

    if entry.imported is None:
        return ""
    lines = [*active_counts(entry.imported.spec).lines(), "", *imported_lines(entry.imported)]
    return "\n" + "\n".join(lines) + "\n"


def _list(counted: list[Counted], shown: Format) -> str:
    """Several models, a line each."""
    from smelt_match.export import columns
    from smelt_match.export.document import counted_row
    from smelt_match.export.table import render

    rows = [
        {"name": item.spec.name, "layout": str(item.spec.visits), **counted_row(item), "control": item.control}
        for item in counted
    ]
    return render([column for column in columns.SPECS if column.key != "family"], rows, shown)


def _conventions(counted: list[Counted], shown: Format) -> str:
    """One model under every convention."""
    from smelt_match.export import columns
    from smelt_match.export.document import convention_rows
    from smelt_match.export.table import render
    from smelt_match.units import short_fraction

    context = counted[0].ledger.context
    note = f"{counted[0].spec.name}: mean attended context c = {short_fraction(context.mean)} ({context.origin})"
    if counted[0].spec.vocab_size is None:
        note += "; embeddings and output head left out, since the spec states no vocab_size"
    return render(columns.CONVENTION, convention_rows(counted), shown, note)


def _ledger(counted: Counted, shown: Format, symbols: bool) -> str:
    """One model, component by component."""
    from smelt_match.budget.passes import drawn
    from smelt_match.export import columns
    from smelt_match.export.document import config_row, convention_note, ledger_rows
    from smelt_match.export.table import render

    config = config_row(counted.spec)
    title = (
        f"{counted.spec.name}: H {config['hidden_size']}, L {config['num_layers']}, E {config['num_experts']}, "
        f"k {config['experts_per_token']}, I {config['expert_intermediate_size']}, d {config['head_dim']}, "
        f"n_q {config['query_heads']}, n_kv {config['kv_heads']}; {counted.spec.visits.canonical}\n\n"
    )
    note = convention_note(counted.ledger)
    if counted.spec.num_experts:
        note += f"; S = {float(counted.sparsity) * 100:.2f} % by Eq. 1, measured against {counted.control}"
    sampled = drawn(counted.spec, counted.ledger.convention, counted.ledger.context)
    if sampled is not None:
        note += f"; {sampled.words}"
    rows = ledger_rows(counted.ledger, numbers=not symbols)
    return (title if shown == "table" else "") + render(columns.LEDGER, rows, shown, note)
