"""``smelt-match audit``: do two models cost the same, and what is it worth where they do not."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smelt_match.cli import options
from smelt_match.errors import AnswerIsNo, BadInput, close_names
from smelt_match.units import parse_fraction, short_fraction

if TYPE_CHECKING:
    from smelt_match.audit.pair import Audit
    from smelt_match.budget.context import Context
    from smelt_match.budget.conventions import Convention
    from smelt_match.budget.mismatch import Price
    from smelt_match.budget.tolerance import Tolerance
    from smelt_match.export.table import Format
    from smelt_match.spec.model import Head

EXAMPLES = """Examples:

  smelt-match audit 200m_s95 200m_s95_smelt

  smelt-match audit 200m_s95 200m_s95_smelt --gain 0.0218

  smelt-match audit 200m_s95 200m_s95_smelt --all-conventions

  smelt-match audit 200m_s95 200m_s95_smelt --require flops,params,kv

  smelt-match audit table1

  smelt-match audit Mixtral-8x7B-v0.1/config.json Llama-3.1-8B"""
TABLE1 = "table1"


def audit(
    baseline: Annotated[
        str, typer.Argument(help="A spec's name, a YAML file, or a config.json; or table1, the paper's Table 1.")
    ],
    candidate: Annotated[str | None, typer.Argument(help="The model that is compared with it.")] = None,
    tolerance: Annotated[
        str,
        typer.Option(
            "--tolerance",
            metavar="T",
            help="Largest |deviation| that is matched: 1%, or flops,params,kv; the default is the paper's.",
        ),
    ] = "4%,1%,4%",
    require: Annotated[
        str | None, typer.Option("--require", metavar="B", help="Exit 1 unless these of flops,params,kv are matched.")
    ] = None,
    all_conventions: Annotated[
        bool, typer.Option("--all-conventions", help="Show which verdicts depend on the way of counting.")
    ] = False,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, max=2**31, metavar="N", help="Where a spec does not state it.")
    ] = None,
    step_time: Annotated[
        str | None, typer.Option("--step-time", metavar="B,C", help="Measured seconds of a training step of both.")
    ] = None,
    surface: Annotated[
        str | None,
        typer.Option("--surface", metavar="S", help="Prices the mismatch: baseline (default), smelt, or FILE[:NAME]."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="D", help="Training tokens of both; default: the most that it was fitted on."),
    ] = None,
    gain: Annotated[
        str | None,
        typer.Option("--gain", metavar="NATS", help="Observed loss of the baseline less that of the candidate."),
    ] = None,
    convention: options.ConventionName = "paper",
    include_head: options.IncludeHead = False,
    mean_context: options.MeanContext = None,
    context: options.ContextTokens = None,
    lengths: options.Lengths = None,
    window: options.Window = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Compare the costs of two models: FLOPs, parameters, KV cache, attention, and the mismatch in nats.

    Both are counted under one convention and in one context, the longer of their two unless another is given. A
    mismatch of FLOPs and parameters is priced along a scaling surface where the surface was fitted, at the context
    that the surface states; a KV cache has no price.
    """
    from smelt_match.budget.tolerance import parse_tolerance

    shown = options.format_option(form)
    options.check_output(output, force)
    override = options.context_option(mean_context, context, lengths, window)
    limits, required, times = parse_tolerance(tolerance), _required(require), _step_times(step_time)
    observed = _gain(gain)
    if candidate is not None and TABLE1 in (baseline, candidate):
        raise BadInput(f"audit {TABLE1}: the table stands alone, without a second model", f"smelt-match audit {TABLE1}")
    if candidate is None:
        _refuse_second(baseline, {"--require": require, "--step-time": step_time, "--surface": surface, "--gain": gain,
                                  "--tokens": tokens, "--vocab-size": vocab_size,
                                  "--all-conventions": all_conventions or None})  # fmt: skip
        rule = options.convention_option(convention, include_head)
        options.emit(_table1(rule, override, limits, shown), output, force)
        return
    if shown == "csv" and (gain, surface, tokens) != (None, None, None):
        raise BadInput("--gain, --surface and --tokens: CSV holds one table", "use --format json")
    ends = _end(baseline, vocab_size), _end(candidate, vocab_size)
    for end in ends:
        options.need_vocabulary(include_head, end.name, getattr(end, "vocab_size", None))
    found = _audits(ends, _rules(convention, include_head, all_conventions, ends), override, limits, times)
    priced = _price(found[0], surface, tokens)
    if shown == "json":
        text = _json(found, priced, observed, all_conventions)
    else:
        text = _text(found, priced, observed, shown, all_conventions)
    options.emit(text, output, force)
    _refuse(found, required)


def _refuse_second(baseline: str, given: dict[str, Any]) -> None:
    """Refuse a model alone, and options of two models beside a published table."""
    if baseline != TABLE1:
        raise BadInput(f"audit {baseline[:80]}: a second model is wanted", "smelt-match audit BASELINE CANDIDATE")
    of_two = [name for name, value in given.items() if value is not None]
    if of_two:
        raise BadInput(f"audit {TABLE1}: {', '.join(of_two)}: belongs to an audit of two models")


def _table1(rule: Convention, override: Context | None, limits: Tolerance, shown: Format) -> str:
    """The paper's table recomputed."""
    from smelt_match.audit.published import studies, table
    from smelt_match.export.document import to_json
    from smelt_match.export.studies import studies_json, studies_text

    printed = table(TABLE1)
    found = studies(printed, rule, override, limits)
    if shown == "json":
        return to_json(studies_json(printed, found, rule))
    return studies_text(printed, found, rule, shown, override)


def _end(text: str, vocab_size: int | None) -> Head:
    """The one model that an argument stands for, with a vocabulary where it states none."""
    from smelt_match.spec.model import ModelSpec

    spec = options.one_entry(text).spec
    return options.with_vocabulary(spec, vocab_size) if isinstance(spec, ModelSpec) else spec


def _rules(name: str, head: bool, every: bool, ends: tuple[Head, Head]) -> list[Convention]:
    """The conventions to audit under, the chosen one first; each with and without the head where that is known."""
    from smelt_match.budget.conventions import CONVENTIONS

    rules = [options.convention_option(name, head)]
    if every:
        for rule in CONVENTIONS.values():
            known = all(getattr(end, "vocab_size", None) is not None for end in ends)
            rules += [rule, *([rule.without_head() if rule.head else rule.with_head()] if known else [])]
    return list({rule.name: rule for rule in rules}.values())


def _audits(
    ends: tuple[Head, Head],
    rules: list[Convention],
    override: Context | None,
    limits: Tolerance,
    times: tuple[Fraction, Fraction] | None,
) -> list[Audit]:
    from smelt_match.audit.pair import audit as compare

    return [compare(*ends, rule, override, limits, times) for rule in rules]


def _price(found: Audit, surface: str | None, tokens: str | None) -> Price:
    """What the mismatch is worth, at the context that the surface states for its F, or else at the audit's."""
    from smelt_match.audit.pair import budgets
    from smelt_match.budget.conventions import convention
    from smelt_match.budget.mismatch import Price, price
    from smelt_match.budget.surface import choose_surface

    chosen, others = choose_surface("baseline" if surface is None else surface)
    count, context = _tokens(tokens, chosen.tokens), chosen.context or found.context
    models = budgets(found, convention("paper"), context)  # the convention that the F of a surface is counted by
    if models is None:
        reason = "not both models can be counted"
        return Price(chosen.name, context.mean, count, None, reasons=(reason,))
    if chosen.context is None:
        typer.echo(
            f"warning: surface {chosen.name!r} does not state the mean_attended_context of its F: "
            f"priced at the audit's, {short_fraction(context.mean)}",
            err=True,
        )
    return price(*models, chosen, others, count, context.mean)


def _tokens(text: str | None, fitted: list[float] | None) -> float:
    if text is None:
        if fitted is None:
            raise BadInput("--tokens is wanted: the surface does not state the tokens of its fit")
        return fitted[1]
    value = parse_fraction(text, "--tokens")
    if not 1 <= value <= 10**18:
        raise BadInput(f"--tokens {text[:40]}: 1 to 1e18 training tokens are possible")
    return float(value)


def _gain(text: str | None) -> float | None:
    if text is None:
        return None
    value = parse_fraction(text, "--gain")
    if not 0 < abs(value) <= 100:
        raise BadInput(f"--gain {text[:40]}: nats other than 0 and at most 100 either way", "the baseline's loss less")
    return float(value)


def _step_times(text: str | None) -> tuple[Fraction, Fraction] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2:
        raise BadInput(f"--step-time {text[:40]!r}: two numbers, baseline,candidate")
    first, second = (parse_fraction(part, "--step-time") for part in parts)
    for value in (first, second):
        if not 0 < value <= 10**9:
            raise BadInput(f"--step-time {text[:40]}: seconds greater than 0 are wanted")
    return first, second


def _required(text: str | None) -> tuple[str, ...]:
    from smelt_match.budget.tolerance import BUDGETS

    names = tuple(part.strip() for part in text.split(",")) if text is not None else ()
    for name in names:
        if name not in BUDGETS:
            raise BadInput(f"--require {name[:40]!r} is not one of {', '.join(BUDGETS)}", close_names(name, BUDGETS))
    return names


def _json(found: list[Audit], priced: Price, gain: float | None, every: bool) -> str:
    from smelt_match.export.audited import audit_json, over_conventions, verdict_json
    from smelt_match.export.document import SCHEMA_VERSION, to_json
    from smelt_match.export.priced import price_json

    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **audit_json(found[0])}
    document["mismatch"] = price_json(priced, gain)
    if every:
        document["conventions"] = [audit_json(one) for one in found]
        document["over_conventions"] = {name: verdict_json(one) for name, one in over_conventions(found).items()}
    return to_json(document)


def _text(found: list[Audit], priced: Price, gain: float | None, shown: Format, every: bool) -> str:
    from smelt_match.export.audited import audit_text, conventions_text
    from smelt_match.export.priced import price_text

    if shown == "csv":
        return conventions_text(found, shown) if every else audit_text(found[0], shown)
    parts = [audit_text(found[0], shown)]
    if every:
        parts.append(conventions_text(found, shown))
    parts.append(price_text(priced, gain, shown))
    return "\n".join(parts)


def _refuse(found: list[Audit], required: tuple[str, ...]) -> None:
    """End with "no" where a required budget is not matched under a convention that was asked for."""
    faults = [
        f"{one.candidate.name}: {name} by convention {one.convention.name!r}: {verdict}"
        for one in found
        for name, verdict in one.unmatched(required).items()
    ]
    if faults:
        raise AnswerIsNo("\n".join(faults), "required by --require")
