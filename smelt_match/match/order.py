"""The total order: of two points that obey the rules, which is the better match.

    1. |KV| deviation     2. the rung of max(|flops|, |params|)     3. |attention| deviation
    4. shape distance     5. alignment score     6. leximax of the matched deviations     7. the tuple itself

The solver fixes 1 and 2 before it compares points, so that the arrays here hold one floor and one rung.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from smelt_match.match.problem import Points, Problem
from smelt_match.match.rules import score

RUNGS = tuple(Fraction(text) / 100 for text in ("0.1", "0.2", "0.35", "0.5", "1", "2", "4", "8"))
SHAPE_STEP = 0.005


def rungs() -> list[Fraction]:
    """The ladder of tolerances, from 0.1 % to 8 % and then doubling past any deviation a grid can have."""
    ladder = list(RUNGS)
    while ladder[-1] < 10**24:
        ladder.append(ladder[-1] * 2)
    return ladder


def rung_of(value: Fraction) -> Fraction:
    """The first rung that ``value`` does not exceed."""
    ladder = rungs()
    while ladder[-1] < value:  # a trial of a study can be further off than any rung that the solver climbs
        ladder.append(ladder[-1] * 2)
    return next(rung for rung in ladder if value <= rung)


def shape_steps(problem: Problem, points: Points) -> Any:
    """|ln (I/H)/(I0/H0)| + 0.5·|ln GQA/GQA0| + 0.25·|ln n_kv/n_kv0|, in whole steps of 0.005."""
    base = problem.question.baseline
    gqa = base.num_attention_heads / base.num_key_value_heads
    width, heads, groups = (
        np.abs(np.log(np.asarray(ratio, dtype=float)))
        for ratio in (
            points.I * base.hidden_size / (points.H * base.expert_intermediate_size),
            points.n_q / points.n_kv / gqa,
            points.n_kv / base.num_key_value_heads,
        )
    )
    return np.rint((width + 0.5 * heads + 0.25 * groups) / SHAPE_STEP).astype(np.int64)


def alignment(problem: Problem, points: Points) -> Any:
    """The alignment score at every point; 0 is best."""
    return score(problem.rules, named(points))


def named(points: Points) -> dict[str, Any]:
    """The quantities that hardware rules speak of."""
    return {
        "hidden_size": points.H, "num_experts": points.E, "expert_intermediate_size": points.I, "head_dim": points.d,
        "num_attention_heads": points.n_q, "num_key_value_heads": points.n_kv,
    }  # fmt: skip


def leximax(problem: Problem, values: dict[str, Any], index: int) -> tuple[Fraction, ...]:
    """|deviations| of the matched budgets at one point, largest first."""
    return tuple(
        sorted(
            (abs(problem.relative(name, int(values[name][index]))) for name in problem.question.match),
            reverse=True,
        )
    )


def best(problem: Problem, points: Points, count: int) -> list[tuple[int, ...]]:
    """The first ``count`` points of one floor and rung, in order."""
    if not len(points):
        return []
    values = problem.values(points)
    attention = np.abs(values["attention"] - problem.targets["attention"])
    keys = (attention, shape_steps(problem, points), alignment(problem, points))
    # ranks instead of values, so that integers beyond int64 are compared exactly too
    order = np.lexsort(tuple(np.unique(key, return_inverse=True)[1] for key in keys[::-1]))
    last = order[min(count, len(order)) - 1]
    ties_with_last = np.ones(len(order), dtype=bool)
    for key in keys:
        ties_with_last &= key == key[last]
    head = order[: min(count, len(order))]
    pool = np.unique(np.concatenate([head, np.flatnonzero(ties_with_last)]))

    def full_key(index: int) -> tuple[Any, ...]:
        return (
            *(int(key[index]) for key in keys),
            leximax(problem, values, index),
            points.row(index),
        )

    return [points.row(index) for index in sorted(pool.tolist(), key=full_key)[:count]]


def order_key(problem: Problem, point: tuple[int, ...]) -> tuple[Any, ...]:
    """The whole order as one tuple, floor and rung included; smaller is better. Exact but for the rounded shape."""
    points = Points.of(point)
    values = problem.values(points)
    match = problem.question.match
    worst = max(abs(problem.relative(name, int(values[name][0]))) for name in match if name != "kv")
    floor = abs(problem.relative("kv", int(values["kv"][0]))) if "kv" in match else Fraction(0)
    return (
        floor,
        rung_of(worst),
        abs(int(values["attention"][0]) - problem.targets["attention"]),
        int(shape_steps(problem, points)[0]),
        int(alignment(problem, points)[0]),
        leximax(problem, values, 0),
        point,
    )
