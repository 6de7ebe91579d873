"""The exact Pareto front over deviation × shape distance × alignment, with KV at its floor."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from smelt_match.match.order import RUNGS, SHAPE_STEP, alignment, shape_steps
from smelt_match.match.problem import Points, Problem
from smelt_match.match.solver import nearest_level


@dataclass(frozen=True)
class FrontPoint:
    """A point that no other point beats on all three of its measures.

    Attributes:
        worst: max(|flops|, |params|) of the matched budgets, exactly.
        shape: Shape distance from the baseline, in whole steps of 0.005.
        alignment: Alignment score, 0 is best.
        point: (H, E, I, d, n_q, n_kv); the smallest tuple where several points have the same three measures.
    """

    worst: Fraction
    shape: int
    alignment: int
    point: tuple[int, ...]

    @property
    def shape_distance(self) -> float:
        """The shape distance as a number."""
        return round(self.shape * SHAPE_STEP, 3)


def pareto_front(problem: Problem) -> list[FrontPoint]:
    """All non-dominated points within 8 % (or within the first rung that holds any), closest deviation first."""
    found = nearest_level(problem)
    if found is None:
        return []
    search, rung, points = found
    if rung < RUNGS[-1]:
        points = search.points(RUNGS[-1])
    front: list[FrontPoint] = []
    for candidate in sorted(_closest_of_each_kind(problem, points), key=lambda p: (p.worst, p.shape, p.alignment)):
        if not any(kept.shape <= candidate.shape and kept.alignment <= candidate.alignment for kept in front):
            front.append(candidate)
    return front


def _closest_of_each_kind(problem: Problem, points: Points) -> list[FrontPoint]:
    """For every (shape, alignment) that occurs: the smallest deviation, exactly."""
    values = problem.values(points)
    names = [name for name in ("flops", "params") if name in problem.question.match]
    worst = np.max([np.abs(values[n] - problem.targets[n]).astype(float) / problem.targets[n] for n in names], axis=0)
    shape, score = shape_steps(problem, points), np.asarray(alignment(problem, points), dtype=np.int64)
    kinds, owner = np.unique(np.stack([shape, score], axis=1), axis=0, return_inverse=True)
    owner = owner.ravel()
    least = np.full(len(kinds), np.inf)
    np.minimum.at(least, owner, worst)
    near = np.flatnonzero(worst <= least[owner] * (1 + 1e-9) + 1e-15)
    best: dict[int, tuple[Fraction, tuple[int, ...]]] = {}
    for index in near.tolist():
        exact = max(abs(problem.relative(n, int(values[n][index]))) for n in names)
        key = (exact, points.row(index))
        kind = int(owner[index])
        best[kind] = min(best.get(kind, key), key)
    return [FrontPoint(exact, int(kinds[kind][0]), int(kinds[kind][1]), point) for kind, (exact, point) in best.items()]
