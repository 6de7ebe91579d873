"""An answer in words: floors, rung, drift over contexts, other conventions, alignment, and what is missing and why."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS
from smelt_match.budget.count import Counted
from smelt_match.budget.deviation import deviation
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput
from smelt_match.export.document import Matched, convention_note
from smelt_match.export.step_time import step_time_words
from smelt_match.match.answer import PolicyAnswer, WayOut
from smelt_match.match.order import named
from smelt_match.match.problem import HEADS_IN_WORDS, POINT_AXES, Points, Problem
from smelt_match.match.solver import Solution, kv_floor, kv_nearest
from smelt_match.match.study import StudyResult
from smelt_match.units import percent

DRIFT_TOKENS = (128, 512, 1024, 2048, 4096)


def explain(matched: Matched) -> list[str]:
    """The sentences under the answer table."""
    question = matched.answer.question
    lines = [
        convention_note(matched.baseline.ledger),
        f"S by Eq. 1 against {matched.baseline.control}; grid {question.grid.name!r}: {question.grid.notes}",
    ]
    if question.reading:
        lines.append(question.reading)
    if matched.published is not None and matched.published_counted() is None:
        lines.append(f"published: {matched.published.name} shows printed figures only, it cannot be counted")
    for policy in matched.answer.policies:
        lines += ["", *_policy(matched, policy)]
    if matched.study is not None:
        lines += ["", _study(matched.study)]
    if matched.fastest is not None:
        lines += ["", *step_time_words(matched.fastest)]
    return lines


def _policy(matched: Matched, policy: PolicyAnswer) -> list[str]:
    problem, solution = policy.problem, policy.solution
    if problem is None or solution is None:
        return [f"{policy.policy}: {policy.reason.removeprefix(policy.policy + ': ')}"]
    heads = "the loop has the baseline's heads divided by the visits, head size unchanged"
    lines = [f"{policy.policy}: {_heads(problem) if policy.policy == 'uniform' else heads}"]
    if policy.reason:
        lines.append(policy.reason)
    if "kv" in problem.question.match:
        lines.append(f"KV floor: {kv_floor_words(problem)}")
        if solution.floor is not None and abs(solution.floor) != abs(kv_floor(problem)):
            lines.append(f"the floor has no point within the rules, so that KV is {percent(solution.floor)}")
    lines.append(_rung(solution))
    lines += [f"pinned off the grid: {text}" for text in _off_grid(problem)]
    counted = next(match for name, rank, match, _ in matched.rows if name == policy.policy and rank == 1)
    lines += [_drift(matched, counted), _conventions(matched, counted), *_alignment(problem, solution)]
    if policy.policy in matched.measured:
        lines.append(matched.measured[policy.policy].words)
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _heads(problem: Problem) -> str:
    """The head rule in force, with pinned counts."""
    question = problem.question
    pinned = [f"{name} pinned to {question.fixed[name]}" for name in POINT_AXES[4:] if name in question.fixed]
    return ", ".join(pinned) or HEADS_IN_WORDS[question.heads]


def _rung(solution: Solution) -> str:
    """The rung that was taken, and how close the whole search space comes."""
    points = "point" if solution.within == 1 else "points"
    where = "with these heads" if solution.floor is None else "with this KV width and these heads"
    return (
        f"rung: max(|flops|, |params|) within {_bare(solution.rung)}, with {solution.within:,} {points} in it; "
        f"{where} nothing on the grid comes closer than {_bare(solution.minimax, 3)}"
    )


def _off_grid(problem: Problem) -> list[str]:
    """Pinned sizes that the grid does not have."""
    question = problem.question
    config = question.baseline.config()
    return [
        f"{name} {value}"
        for name, value in question.fixed.items()
        if name not in POINT_AXES[4:] and value not in getattr(question.grid, name).at(config[name])
    ]


def _bare(value: Fraction, digits: int = 2) -> str:
    text = percent(value, digits).lstrip("+")
    return text.replace(".00 %", " %") if digits == 2 else text


def kv_floor_words(problem: Problem) -> str:
    """Both KV floors in words, K = n_kv·d: with the KV heads that the flags allow, and with any."""
    if problem.policy == "split":
        return "the heads of the loop are divided, so that Σ n_kv·d is the baseline's: " + percent(kv_floor(problem))
    question = problem.question
    executed, needed = problem.kv_slots // 2, problem.targets["kv"] // 2
    n_kv = question.fixed.get("num_key_value_heads", question.baseline.num_key_value_heads)
    here = _nearest(problem)
    kept = "any KV heads" if question.heads == "free-kv" else f"{n_kv} KV head{'s' * (n_kv != 1)} kept"
    text = f"{kept}: {executed}·K must be {needed}, nearest {here}"
    if question.heads != "free-kv" and not question.is_identity and "num_key_value_heads" not in question.fixed:
        try:
            text += f"; any KV heads: {_nearest(Problem(replace(question, heads='free-kv'), 'uniform'))}"
        except BadInput:
            text += "; any KV heads: no other width on the grid"
    return text


def _nearest(problem: Problem) -> str:
    return " or ".join(f"{width}, {percent(value)}" for width, value in kv_nearest(problem).items())


def _drift(matched: Matched, counted: Counted) -> str:
    question = matched.answer.question
    if question.convention.attention == "none":
        return (
            f"FLOPs deviation: the same at every document length, since {question.convention.name!r} bills no attention"
        )
    parts = []
    for tokens in DRIFT_TOKENS:
        context = Context.causal(tokens)
        ours = ledger(counted.spec, question.convention, context).budget
        theirs = ledger(question.baseline, question.convention, context).budget
        parts.append(f"{percent(deviation(ours, theirs).flops)} at {tokens:,} tokens")
    return "FLOPs deviation by document length: " + ", ".join(parts)


def _conventions(matched: Matched, counted: Counted) -> str:
    found = matched.by_convention(counted.spec)
    parts = [f"{name} {percent(Fraction(value))}" for name, value in found.items()]
    unknown = counted.spec.vocab_size is None and any(row.head for row in CONVENTIONS.values())
    tail = " (output heads left out: the spec states no vocab_size)" if unknown else ""
    return "FLOPs deviation by convention: " + ", ".join(parts) + tail


def _alignment(problem: Problem, solution: Solution) -> list[str]:
    values = named(Points.of(solution.ranked[0]))
    broken = [rule for rule in problem.rules if bool(rule.broken(values[rule.quantity])[0])]
    told = [
        f"  {rule.id}: {rule.quantity} {int(values[rule.quantity][0])} is not {rule.wording()}; {rule.reason}"
        for rule in broken
    ]
    return [f"alignment: score {sum(rule.penalty for rule in broken)}, 0 is best", *told]


def _study(study: StudyResult) -> str:
    met = f"met at trial {study.met_at}" if study.met_at is not None else "not met"
    gap = "no feasible trial" if study.gap is None else f"gap of the best trial {percent(study.gap, 3)}"
    return (
        f"study (uniform): {study.trials} trials of {study.sampler}, seed {study.seed}, {study.duplicates} duplicates, "
        f"{study.infeasible} infeasible; certified optimum {met}; {gap}; none beats the certificate"
    )


def way_out_line(way: WayOut) -> str:
    """What another question reaches, in one line; policies that change nothing are left out."""
    parts = []
    for policy in way.answer.solved:
        assert policy.solution is not None
        assert policy.problem is not None
        point = policy.solution.ranked[0]
        values = policy.problem.values(Points.of(point))
        off = {name: policy.problem.relative(name, int(values[name][0])) for name in ("flops", "params", "kv")}
        reached = ", ".join(f"{name} {percent(value)}" for name, value in off.items())
        H, E, I, d, n_q, n_kv = point
        parts.append(f"{policy.policy} {reached} (H {H}, E {E}, I {I}, d {d}, n_q {n_q}, n_kv {n_kv})")
    return f"{way.change}: {'within the tolerance' if way.within else 'not within it'}: " + "; ".join(parts)
