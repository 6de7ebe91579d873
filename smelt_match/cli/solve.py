"""``smelt-match solve``: the matched looped model, with its certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from smelt_match.cli import options, step_time
from smelt_match.errors import AnswerIsNo, BadInput, close_names

if TYPE_CHECKING:
    from smelt_match.export.document import Matched
    from smelt_match.match.answer import Answer
    from smelt_match.match.problem import Heads, Question
    from smelt_match.match.study import StudyResult
    from smelt_match.spec.family import Entry

EXAMPLES = """Examples:

  smelt-match solve --baseline 200m_s95 --loop mid50x2

  smelt-match solve -b 200m_s95 -l "full x2" --free-kv-heads --top 3

  smelt-match solve --baseline smelt --loop mid50x2 --format md --no-study

  smelt-match solve -b 200m_s95 -l mid50x2 --tolerance 1% --grid head4

  smelt-match solve --baseline nano_s85 --loop none --depth 9 --no-study

  smelt-match solve -b Mixtral-8x7B-v0.1/config.json -l mid50x2

  smelt-match solve -b Llama-3.1-8B -l mid50x2 --experts-per-token 8

  smelt-match solve -b nano_s85 -l mid50x2 --objective step-time --tokens 64"""

TRIALS = 64
SHORT = {"H": "hidden_size", "E": "num_experts", "I": "expert_intermediate_size", "d": "head_dim",
         "n_q": "num_attention_heads", "n_kv": "num_key_value_heads"}  # fmt: skip


def solve(
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            "-b",
            help="A spec's name, a family (smelt), a pattern (200m_*), a YAML file, or a config.json.",
        ),
    ],
    loop: Annotated[
        str,
        typer.Option(
            "--loop",
            "-l",
            help='mid50x2, early50x2, "full x4", "each x2", 2-4-2x32, "loop 4-9 x2 of 12", none.',
        ),
    ],
    depth: Annotated[int | None, typer.Option("--depth", metavar="N", help="Physical layers of the answer.")] = None,
    keep: Annotated[
        str,
        typer.Option("--keep", help="heads: keep n_q and n_kv. q-width: keep n_kv, and n_q·d in proportion to H."),
    ] = "heads",
    free_heads: Annotated[bool, typer.Option("--free-heads", help="Let the query heads change.")] = False,
    free_kv_heads: Annotated[bool, typer.Option("--free-kv-heads", help="Let the query and KV heads change.")] = False,
    match: Annotated[str, typer.Option("--match", help="Budgets to match.")] = "flops,params,kv",
    one_sided: Annotated[bool, typer.Option("--one-sided", help="Never exceed the baseline in a budget.")] = False,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="NAME=N", help="Pin a dimension, such as hidden_size=1024. Repeatable."),
    ] = None,
    grid: Annotated[
        str | None, typer.Option("--grid", help="A grid's name or YAML file; `smelt-match grids` lists them.")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="T",
            help="Largest |deviation|: 1%, or flops,params,kv such as 4%,1%,4%. Exit 1 if nothing is within.",
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option("--top", min=1, max=1000, metavar="K", help="Show the first K matches of each policy."),
    ] = 1,
    front: Annotated[
        bool,
        typer.Option("--front", help="Show the exact Pareto front over deviation, shape distance and alignment."),
    ] = False,
    experts_per_token: Annotated[
        int | None,
        typer.Option(
            "--experts-per-token",
            min=1,
            max=2**20,
            metavar="K",
            help="Read a dense baseline's feed-forward as K experts of a K-th of its width, which makes it an MoE.",
        ),
    ] = None,
    convention: options.ConventionName = "paper",
    include_head: options.IncludeHead = False,
    mean_context: options.MeanContext = None,
    context: options.ContextTokens = None,
    lengths: options.Lengths = None,
    window: options.Window = None,
    objective: step_time.Objective = "certificate",
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", min=1, max=100_000, help="Trials of the Optuna study: 64 by default, 10 for step-time."
        ),
    ] = None,
    device: step_time.Device = None,
    tokens: step_time.Tokens = None,
    no_study: Annotated[bool, typer.Option("--no-study", help="Skip the study that checks the certificate.")] = False,
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            metavar="PATH",
            help="Keep the study in a journal file or database URL, and continue it.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31, help="Seed of the study's sampler.")] = 0,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Build and run the first match of each policy without memory, and compare with its count. "
            "Default: for one baseline, in tables and JSON.",
        ),
    ] = None,
    form: options.OutputFormat = "table",
    output: options.Output = None,
    force: options.Force = False,
) -> int:
    """Solve for the looped model that matches a baseline in FLOPs, parameters and KV cache."""
    from smelt_match.budget.tolerance import parse_tolerance
    from smelt_match.match.answer import answer
    from smelt_match.spec.family import expand

    shown = options.format_option(form)
    options.check_output(output, force)
    entries = _baselines(expand(baseline), baseline)
    if study is not None and (no_study or len(entries) > 1):
        raise BadInput(f"--study {study}: " + ("excludes --no-study" if no_study else "one study holds one baseline"))
    if trials is not None and no_study:
        raise BadInput(f"--trials {trials}: excludes --no-study")
    stepping = step_time.check_objective(objective, len(entries), no_study, device, tokens)
    heads = _heads(keep, free_heads, free_kv_heads)
    budgets = tuple(part.strip() for part in match.split(","))
    pinned = _all_pinned(fix or [])
    limits = parse_tolerance(tolerance) if tolerance is not None else None
    override = options.context_option(mean_context, context, lengths, window)
    questions = []
    for entry in entries:
        spec: Any = entry.spec
        options.need_vocabulary(include_head, spec.name, spec.vocab_size)
        questions.append(
            _question(
                entry, loop, depth, grid, override, convention=options.convention_option(convention, include_head),
                heads=heads, match=budgets, one_sided=one_sided, fixed=pinned, tolerance=limits,
                experts_per_token=experts_per_token,
            )
        )  # fmt: skip
    timer = step_time.step_timer(questions[0], device, tokens) if stepping else None
    results = []
    for question in questions:
        found = answer(question, top)
        checked = None if no_study or stepping else _study(found, trials or TRIALS, seed, study)
        results.append(_matched(found, top, checked, front))
        if timer is not None:
            results[-1].fastest = step_time.fastest(found, timer, trials, seed, study)
    if measure or (measure is None and len(results) == 1 and shown in ("table", "json")):
        _measure(results, include_head)
    options.emit(_rendered(results, shown, front), output, force)
    _warn(results)
    return _verdict(results)


def _baselines(entries: list[Entry], text: str) -> list[Entry]:
    from smelt_match.spec.family import countable

    if len(entries) == 1:
        spec = countable(entries[0])
        if not spec.visits.is_unlooped:
            raise BadInput(f"{spec.name}: is itself looped ({spec.layout}); a baseline visits every layer once")
        return entries
    chosen = [entry for entry in entries if entry.is_baseline]
    if not chosen:
        raise BadInput(f"--baseline {text}: no unlooped model that can be counted")
    return chosen


def _heads(keep: str, free_heads: bool, free_kv_heads: bool) -> Heads:
    if keep not in ("heads", "q-width"):
        raise BadInput(f"--keep {keep[:40]!r} is not heads or q-width", close_names(keep[:40], ("heads", "q-width")))
    if keep == "q-width" and (free_heads or free_kv_heads):
        raise BadInput("--keep q-width excludes --free-heads and --free-kv-heads")
    if free_kv_heads:
        return "free-kv"
    if free_heads:
        return "free"
    return "kept" if keep == "heads" else "q-width"


def _all_pinned(texts: list[str]) -> dict[str, int]:
    pinned: dict[str, int] = {}
    for name, value in map(_pinned, texts):
        if pinned.setdefault(name, value) != value:
            raise BadInput(f"--fix {name} is given twice: {pinned[name]} and {value}")
    return pinned


def _pinned(text: str) -> tuple[str, int]:
    from smelt_match.spec.model import MAX_COUNT
    from smelt_match.spec.parts import MAX_WIDTH

    name, _, value = (part.strip() for part in text.partition("="))
    name = SHORT.get(name, name)
    if name in ("num_layers", "L"):
        raise BadInput(f"--fix {text[:60]!r}: the depth is not searched", "give it with --depth N")
    if name not in SHORT.values():
        raise BadInput(f"--fix {text[:60]!r}: unknown dimension {name[:40]!r}", close_names(name[:40], SHORT.values()))
    most = MAX_WIDTH if name in ("hidden_size", "expert_intermediate_size", "head_dim") else MAX_COUNT
    if not value.isascii() or not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= most:
        raise BadInput(f"--fix {text[:60]!r}: a whole number from 1 to {most:,} is wanted")
    if name == "head_dim" and int(value) % 2:
        raise BadInput(f"--fix {text}: head_dim must be even; rotary embeddings turn pairs")
    return name, int(value)


def _question(
    entry: Entry,
    loop: str,
    depth: int | None,
    grid: str | None,
    override: Any,
    experts_per_token: int | None,
    **asked: Any,
) -> Question:
    from smelt_match.budget.count import context_of
    from smelt_match.match.dense import as_experts
    from smelt_match.match.grid import find_grid
    from smelt_match.match.problem import Question, check_parts
    from smelt_match.spec.family import countable
    from smelt_match.spec.grammar import parse_layout
    from smelt_match.spec.layout import MAX_LAYERS

    spec, reading = countable(entry), ""
    check_parts(spec)
    if experts_per_token is not None:
        spec, reading = as_experts(spec, experts_per_token)
    if depth is not None and not 1 <= depth <= MAX_LAYERS:
        raise BadInput(f"--depth {depth}: between 1 and {MAX_LAYERS:,} layers are possible")
    layout = parse_layout(loop, depth if depth is not None else spec.num_layers)
    chosen = find_grid(grid if grid is not None else entry.grid or "bf16")
    return Question(
        baseline=spec, layout=layout, context=context_of(spec, override), grid=chosen, reading=reading, **asked
    )


def _study(found: Answer, trials: int, seed: int, storage: str | None) -> StudyResult | None:
    from smelt_match.match.study import run_study

    uniform = found.policies[0]
    if uniform.solution is None or uniform.problem is None:
        return None
    return run_study(uniform.problem, uniform.solution, trials, seed, storage)


def _matched(found: Answer, top: int, checked: StudyResult | None, front: bool) -> Matched:
    from smelt_match.export.document import Matched
    from smelt_match.match.front import pareto_front

    fronts = None
    if front:
        fronts = {p.policy: pareto_front(p.problem) for p in found.solved if p.problem is not None}
    return Matched(found, top, checked, fronts)


def _measure(results: list[Matched], head: bool) -> None:
    """Build and run the first match of each policy; what cannot be is said in its line.

    Operators are counted as they run, forward and backward; `count --measure` traces the model, too.
    """
    from smelt_match.measure.agreement import attempt

    for result in results:
        context = result.answer.question.context
        firsts = [(policy, counted.spec) for policy, rank, counted, _ in result.rows if rank == 1]
        result.measured = {policy: attempt(spec, context, head, trace=False) for policy, spec in firsts}


def _rendered(results: list[Matched], shown: Any, front: bool) -> str:
    from smelt_match.export import columns
    from smelt_match.export.document import SCHEMA_VERSION, convention_note, to_json
    from smelt_match.export.explain import explain
    from smelt_match.export.step_time import step_time_note
    from smelt_match.export.table import render

    if shown == "json":
        documents = [result.as_json() for result in results]
        one = len(documents) == 1
        return to_json(documents[0] if one else {"schema_version": SCHEMA_VERSION, "results": documents})
    several = len(results) > 1
    chosen = columns.FRONT if front else columns.SOLVE
    if not several and shown != "csv":
        chosen = tuple(column for column in chosen if column.key != "baseline")
    rows = [row for result in results for row in (result.front_rows() if front else result.table_rows())]
    question = results[0].answer.question
    note = f"{question.layout}; {convention_note(results[0].baseline.ledger)}"
    note += f"; {question.reading}" if question.reading else ""
    note += f"; {step_time_note(results[0].fastest)}" if results[0].fastest is not None else ""
    if several or shown != "table":
        text = render(chosen, rows, shown, note)
        notes = [f"{r.baseline.spec.name}: {p.reason}" for r in results for p in r.answer.policies if p.reason]
        notes += [f"{r.baseline.spec.name}, {name}: {m.words}" for r in results for name, m in r.measured.items()]
        return text + ("\n" + "\n".join(notes) + "\n" if notes and shown == "table" else "")
    title = f"{question.baseline.name}, {question.layout}: {_short(question.layout.canonical)}\n\n"
    return title + render(chosen, rows, shown) + "\n" + "\n".join(explain(results[0])) + "\n"


def _warn(results: list[Matched]) -> None:
    """Tell of matches that are none by the paper's tolerances, where the reader set no other."""
    from smelt_match.budget.tolerance import PAPERS

    for result in results:
        question = result.answer.question
        for policy, rank, _, off in result.rows if question.tolerance is None else ():
            far = [f"{name} {float(getattr(off, name)) * 100:+.2f} %" for name in question.match
                   if abs(getattr(off, name)) > getattr(PAPERS, name)]  # fmt: skip
            if far and rank == 1:
                typer.echo(
                    f"warning: {question.baseline.name}, {policy}: the closest match is beyond the paper's tolerances "
                    f"(FLOPs 4 %, parameters 1 %, KV cache 4 %): {', '.join(far)}",
                    err=True,
                )


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:150]} … ({len(text):,} characters; all in JSON)"


def _verdict(results: list[Matched]) -> int:
    """0 if every baseline has a match and each equals its count; else `AnswerIsNo`, with the ways out."""
    measured = [found for result in results for found in result.measured.values()]
    if any(found.different for found in measured):
        from smelt_match.export.measured import refuse_difference

        refuse_difference(measured)
    unmatched = [result for result in results if not result.answer.solved]
    if not unmatched:
        return 0
    lines = []
    for result in unmatched:
        name = result.baseline.spec.name
        lines += [f"{name}: {policy.reason}" for policy in result.answer.policies]
    if len(unmatched) > 1:
        raise AnswerIsNo("\n".join(lines), "solve one of them alone to see the ways out")
    ways = _ways_out(unmatched[0]) or ["none found: no finer head sizes, other heads or near layouts give a match"]
    raise AnswerIsNo("\n".join(lines), "\n  ".join(["ways out:", *ways]))


def _ways_out(result: Matched) -> list[str]:
    """Finer head sizes, other heads, other layouts: each with its numbers."""
    from dataclasses import replace

    from smelt_match.export.explain import way_out_line
    from smelt_match.match.answer import ways_out
    from smelt_match.match.grid import find_grid
    from smelt_match.match.layouts import layout_floors

    question = result.answer.question
    changes: list[tuple[str, Question]] = []
    if question.grid.name == "bf16":
        changes += [(f"--grid {name}", replace(question, grid=find_grid(name))) for name in ("head4", "head2")]
    if question.heads != "free-kv":
        changes.append(("--free-kv-heads", replace(question, heads="free-kv")))
    if question.heads == "kept":
        changes.append(("--free-heads", replace(question, heads="free")))
    near = layout_floors(question, [question.layout.num_layers], max(2, *question.layout.counts))
    others = [row.layout for row in near if row.layout.visits != question.layout.visits]
    changes += [(f'--loop "{layout.text}"', replace(question, layout=layout)) for layout in others[:3]]
    found = sorted(ways_out(question, changes), key=lambda way: not way.within)
    lines = [way_out_line(way) for way in found]
    none_within = lines and not any(way.within for way in found)
    return ["of those tried, none is within the tolerance", *lines] if none_within else lines
