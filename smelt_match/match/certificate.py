"""The certificate: all that a stranger needs to recompute the claim, as plain JSON with integers and num/den strings.

`smelt_match.match.verify` recomputes it by code that shares nothing with this module or the solver.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from smelt_match.budget.components import Dims
from smelt_match.budget.ledger import Group, groups_of, spec_groups
from smelt_match.match.answer import Answer, PolicyAnswer
from smelt_match.match.problem import POINT_AXES, Points, Problem
from smelt_match.match.solver import Solution, kv_deviations, pure_minimax
from smelt_match.units import fraction_text

FORMULA_VERSION = 1
PLAIN_DIMS = Dims(1, 1, 1, 1, 1, 1, 2)  # forms and visits are all that a group is asked for here


def certificate(answer: Answer) -> dict[str, Any]:
    """The certificate of an answer: one entry for each policy, null where the policy does not exist."""
    return {
        "formula_version": FORMULA_VERSION,
        "policies": {policy.policy: _policy(policy) for policy in answer.policies},
    }


def _policy(policy: PolicyAnswer) -> dict[str, Any] | None:
    problem, solution = policy.problem, policy.solution
    if problem is None:
        return None
    question = problem.question
    base = question.baseline
    tolerance = question.tolerance
    return {
        "policy": policy.policy,
        "heads": question.heads,
        "loop_head_divisor": problem.ways,
        "baseline": {
            "name": base.name,
            "config": base.config(),
            "vocab_size": base.vocab_size,
            "tie_word_embeddings": base.tie_word_embeddings,
            "head_vocab_size": base.head_vocab_size,
            "output_head_bias": base.output_head_bias,
            "final_norm": base.final_norm,
            "groups": _groups(spec_groups(base)),
        },
        "layout": {
            "visits": list(question.layout.visits),
            "groups": _groups(groups_of(question.layout, PLAIN_DIMS, PLAIN_DIMS, problem.forms)),
        },
        "convention": {
            "name": question.convention.name,
            "router": question.convention.router,
            "norms": question.convention.norms,
            "input_embedding": question.convention.input_embedding,
            "head": question.convention.head,
            "bills_attention": question.convention.attention != "none",
            "attended_tokens": fraction_text(problem.attended),
        },
        "grid": {
            "name": question.grid.name,
            "axes": {name: _axis(problem.axes[name]) for name in POINT_AXES},
            "envelope": fraction_text(problem.envelope) if problem.envelope is not None else None,
        },
        "hardware_rules": [
            {
                "id": rule.id, "quantity": rule.quantity, "multiple_of": rule.multiple_of, "one_of": rule.one_of,
                "penalty": rule.penalty,
            }
            for rule in problem.rules
        ],
        "match": list(question.match),
        "one_sided": question.one_sided,
        "tolerance": None
        if tolerance is None
        else {name: fraction_text(getattr(tolerance, name)) for name in ("flops", "params", "kv")},
        "targets": {"flops_scale": problem.attended.denominator, **problem.targets},
        "minimax_all": _pure(problem),
        **_found(problem, solution),
    }  # fmt: skip


def _groups(groups: list[Group]) -> list[dict[str, Any]]:
    """Blocks by visits and form; what a form has beyond plain attention and experts is spelled out."""
    unsolvable = ("d_v", "latent", "window")  # the solver refuses them, so that no answer has them
    return [
        {
            "blocks": len(group.blocks),
            "visits": group.visits,
            "form": {name: value for name, value in asdict(group.dims.form).items() if name not in unsolvable},
        }
        for group in groups
    ]


def _axis(values: tuple[int, ...]) -> dict[str, Any]:
    step = values[1] - values[0] if len(values) > 1 else 1
    if values == tuple(range(values[0], values[-1] + 1, step)):
        return {"min": values[0], "max": values[-1], "step": step}
    return {"values": list(values)}


def _found(problem: Problem, solution: Solution | None) -> dict[str, Any]:
    """What the search says; with no solution it says that no point obeys the rules and the tolerance."""
    if solution is None:
        names = ("kv_level", "rung", "minimax_flops_params", "optimum", "deviation", "runner_up")
        return {**dict.fromkeys(names), "points_within_rung": 0}
    return {
        "kv_level": _level(problem, solution),
        "rung": fraction_text(solution.rung),
        "points_within_rung": solution.within,
        "minimax_flops_params": fraction_text(solution.minimax),
        "optimum": _point(solution.ranked[0]),
        "deviation": _deviation(problem, solution.ranked[0]),
        "runner_up": _point(solution.ranked[1]) if len(solution.ranked) > 1 else None,
    }


def _level(problem: Problem, solution: Solution) -> dict[str, Any] | None:
    """The KV deviation of the optimum, and all KV widths as near as that: the floor, unless it has no point."""
    if solution.floor is None:
        return None
    deviations = kv_deviations(problem)
    nearest = [K for K, value in deviations.items() if abs(value) == abs(solution.floor)]
    return {"deviation": fraction_text(solution.floor), "kv_widths": nearest}


def _pure(problem: Problem) -> dict[str, Any] | None:
    """The minimax of all three budgets, which is degenerate as an answer but a sharp check of the search.

    None when a budget is left out, or when no point obeys the rules.
    """
    if len(problem.question.match) < 3:
        return None
    free = problem
    if problem.question.tolerance is not None:
        free = Problem(replace(problem.question, tolerance=None), problem.policy)
    found = pure_minimax(free)
    return None if found is None else {"deviation": fraction_text(found[0]), "points": found[1]}


def _point(point: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(POINT_AXES, point, strict=True))


def _deviation(problem: Problem, point: tuple[int, ...]) -> dict[str, str]:
    values = problem.values(Points.of(point))
    return {name: fraction_text(problem.relative(name, int(values[name][0]))) for name in values}
