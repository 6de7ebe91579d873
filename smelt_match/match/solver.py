"""The exact solver.

Head size and head counts enter the budgets only through Q = n_q·d and K = n_kv·d, and the KV cache depends on K alone,
so its best deviation is a number-theoretic floor that is known before any search. At that floor, FLOPs and parameters
are both linear in I for every (H, E) and head geometry: two intervals of I, intersected, hold exactly the points
within a limit. The solver computes them for the whole grid at once, one rung of the ladder after the other. Nothing
is sampled, so what it does not find does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from smelt_match.errors import BadInput
from smelt_match.match.order import RUNGS, best, rungs
from smelt_match.match.problem import POINT_AXES, Points, Problem
from smelt_match.spec.model import ModelSpec

MAX_PAIRS = 5_000_000
MAX_CELLS = 40_000_000
MAX_POINTS = 5_000_000
CHUNK = 2_000_000


def kv_deviations(problem: Problem) -> dict[int, Fraction]:
    """The signed KV deviation of every K = n_kv·d on the grid that the flags allow, by K."""
    target = problem.targets["kv"]
    widths = {d * n_kv for d, _, n_kv in problem.geometries}
    found = {K: Fraction(problem.kv_slots * K - target, target) for K in sorted(widths)}
    if problem.question.one_sided:
        found = {K: value for K, value in found.items() if value <= 0}
    if not found:
        raise BadInput("no KV width on the grid lies at or below the baseline's", "leave out --one-sided")
    return found


def kv_floor(problem: Problem) -> Fraction:
    """The signed KV deviation nearest to 0 (a negative one before a positive one of the same size)."""
    return min(kv_deviations(problem).values(), key=lambda value: (abs(value), value))


def kv_nearest(problem: Problem) -> dict[int, Fraction]:
    """The KV widths K = n_kv·d at the floor with their signed deviations; two where one lies above and one below."""
    floor = abs(kv_floor(problem))
    return {K: value for K, value in kv_deviations(problem).items() if abs(value) == floor}


class Search:
    """All points of a problem whose KV width n_kv·d is one of ``widths``.

    A *pair* is a hidden size with a head geometry, a *cell* a pair with an expert count. FLOPs and parameters grow in
    E and in I, and are linear in each with the other held, which is all that is used here: four evaluations of the
    ledger at every pair give the coefficients, and the rest is arithmetic on them.
    """

    def __init__(self, problem: Problem, widths: Set[int]) -> None:
        self.problem = problem
        self.axis_of = {name: np.array(values, dtype=np.int64) for name, values in problem.axes.items()}
        self.I, self.E = self.axis_of["expert_intermediate_size"], self.axis_of["num_experts"]
        self.dtype = self._exact_dtype()
        geometries = [geometry for geometry in problem.geometries if geometry[0] * geometry[2] in widths]
        if len(geometries) * len(self.axis_of["hidden_size"]) > MAX_PAIRS:
            raise BadInput(
                f"grid {problem.question.grid.name!r}: more than {MAX_PAIRS:,} pairs of hidden size and heads",
                "raise a step, narrow a bound, or pin a dimension with --fix",
            )
        self.pairs = self._pairs(geometries)
        self.first, self.last = self._envelope_of_I(self.pairs.H)

    def _exact_dtype(self) -> Any:
        """int64 where no product of the grid can pass it, else Python integers, which are slower and never wrap."""
        problem = self.problem
        most = {name: max(values) for name, values in problem.axes.items()}
        corner = Points.of(tuple(most[name] for name in POINT_AXES))
        base, factor = problem.question.baseline, problem.envelope or Fraction(1)
        widest = max(most["hidden_size"], most["head_dim"] * most["num_attention_heads"])
        theirs = max(base.hidden_size, base.expert_intermediate_size, base.num_attention_heads * base.head_dim)
        products = [int(column[0]) for column in problem.values(corner).values()]
        products.append(2 * widest * theirs * factor.numerator * factor.denominator)
        return np.int64 if max(*products, *problem.targets.values()) < 2**61 else object

    def _pairs(self, geometries: list[tuple[int, int, int]]) -> Points:
        """Hidden sizes × geometries that the envelope of Q/H and the head rule allow; E and I are left at 0."""
        problem, base = self.problem, self.problem.question.baseline
        axis = self.axis_of["hidden_size"].astype(self.dtype)
        H = np.tile(axis, len(geometries))
        columns = np.array(geometries, dtype=np.int64).reshape(-1, 3).astype(self.dtype)
        d, n_q, n_kv = (np.repeat(columns[:, i], len(axis)) for i in range(3))
        keep = np.ones(len(H), dtype=bool)
        if problem.envelope is not None:
            p, q = problem.envelope.numerator, problem.envelope.denominator
            ours, theirs = n_q * d * base.hidden_size, H * (base.num_attention_heads * base.head_dim)
            keep &= (ours * q <= theirs * p).astype(bool) & (theirs * q <= ours * p).astype(bool)
        if problem.question.heads == "q-width" and problem.policy == "uniform":
            keep &= (n_q == nearest_heads(base, H, d, n_kv)).astype(bool)
        zero = 0 * H
        return Points(H, zero, zero, d, n_q, n_kv).take(keep)

    def _envelope_of_I(self, H: Any) -> tuple[Any, Any]:
        """First and last index into the axis of I that the envelope of I/H allows, for each pair."""
        if self.problem.envelope is None:
            zeros = np.zeros(len(H), dtype=np.int64)
            return zeros, zeros + len(self.I) - 1
        base, p, q = self.problem.question.baseline, *self.problem.envelope.as_integer_ratio()
        ours = H * base.expert_intermediate_size
        least, most = -((-ours * q) // (base.hidden_size * p)), (ours * p) // (base.hidden_size * q)
        return self._at_least(self.I, least), self._at_most(self.I, most)

    def _at_least(self, axis: Any, value: Any) -> Any:
        return np.searchsorted(axis, np.clip(value, -1, int(axis[-1]) + 1).astype(np.int64), "left")

    def _at_most(self, axis: Any, value: Any) -> Any:
        return np.searchsorted(axis, np.clip(value, -1, int(axis[-1]) + 1).astype(np.int64), "right") - 1

    def bounds(self, budget: str, limit: Fraction) -> tuple[int, int]:
        """The inclusive integer range of a budget within a limit, under the tolerance and the sidedness in force."""
        question, target = self.problem.question, self.problem.targets[budget]
        if question.tolerance is not None:
            limit = min(limit, getattr(question.tolerance, budget))
        slack = limit.numerator * target // limit.denominator
        if self.dtype is not object:
            slack = min(slack, 2**61)  # no value of the grid is further away, and int64 cannot hold more
        return target - slack, target + (0 if question.one_sided else slack)

    @cached_property
    def coefficients(self) -> dict[str, tuple[Any, ...]]:
        """The coefficients of every pair; see `_coefficients`."""
        return self._coefficients(self.pairs)

    def _coefficients(self, pairs: Points) -> dict[str, tuple[Any, ...]]:
        """(c, e, i, ei) of flops and params = c + e·E + i·I + ei·E·I, which is what they are for a given pair."""
        corners = {
            (E, I): self.problem.values(replace(pairs, E=0 * pairs.H + E, I=0 * pairs.H + I))
            for E in (0, 1)
            for I in (0, 1)
        }
        found = {}
        for budget in ("flops", "params"):
            c, e, i, both = (corners[corner][budget] for corner in ((0, 0), (1, 0), (0, 1), (1, 1)))
            found[budget] = (c, e - c, i - c, both - e - i + c)
        return found

    def cells(self, limit: Fraction, size: int | None = None) -> Iterator[tuple[Points, Any, Any]]:
        """Chunks of cells with the first and last index of I whose points lie within a limit; empty ones left out.

        ``size`` is the number of pairs in a chunk; small chunks suit a question that one point answers.
        """
        step = size or max(1, CHUNK // len(self.E))
        work = 0
        for start in range(0, len(self.pairs), step):
            part = slice(start, start + step)
            pairs, first, last = self.pairs.take(part), self.first[part], self.last[part]
            if size is not None:
                coefficients = self._coefficients(pairs)  # most chunks may never be asked for
            else:
                coefficients = {name: tuple(column[part] for column in row) for name, row in self.coefficients.items()}
            owner, E, first, last = self._windows(coefficients, first, last, limit)
            work += len(owner)
            if work > MAX_CELLS:
                name = self.problem.question.grid.name
                raise BadInput(
                    f"grid {name!r}: more than {MAX_CELLS:,} (H, E, heads) cells within {float(limit):.4%}",
                    "use a coarser grid, or pin a dimension with --fix",
                )
            for budget, (c, e, i, ei) in coefficients.items():
                if budget in self.problem.question.match:
                    low, high = self.bounds(budget, limit)
                    value, slope = c[owner] + e[owner] * E, i[owner] + ei[owner] * E
                    first = np.maximum(first, self._at_least(self.I, -((value - low) // slope)))
                    last = np.minimum(last, self._at_most(self.I, (high - value) // slope))
            keep = last >= first
            yield replace(pairs.take(owner[keep]), E=E[keep]), first[keep], last[keep]

    def _windows(
        self, coefficients: dict[str, tuple[Any, ...]], first: Any, last: Any, limit: Fraction
    ) -> tuple[Any, Any, Any, Any]:
        """The cells that can hold a point: FLOPs bound I over all E, then parameters bound E over those I.

        Returns the index of each cell's pair, its E, and the pair's bounds of I.
        """
        match = self.problem.question.match
        if "flops" in match:
            c, e, i, ei = coefficients["flops"]
            low, high = self.bounds("flops", limit)
            few, many = int(self.E[0]), int(self.E[-1])
            least = -((c + e * many - low) // (i + ei * many))
            most = (high - c - e * few) // (i + ei * few)
            first = np.maximum(first, self._at_least(self.I, least))
            last = np.minimum(last, self._at_most(self.I, most))
        alive = np.flatnonzero(last >= first)
        first, last = first[alive], last[alive]
        from_E = np.zeros(len(alive), dtype=np.int64)
        to_E = from_E + len(self.E) - 1
        if "params" in match:
            c, e, i, ei = (column[alive] for column in coefficients["params"])
            low, high = self.bounds("params", limit)
            narrow, wide = self.I[first].astype(self.dtype), self.I[last].astype(self.dtype)
            from_E = self._at_least(self.E, -((c + i * wide - low) // (e + ei * wide)))
            to_E = self._at_most(self.E, (high - c - i * narrow) // (e + ei * narrow))
        index, E = _expand(from_E, to_E)
        return alive[index], self.E[E].astype(self.dtype), first[index], last[index]

    def any(self, limit: Fraction) -> bool:
        """Whether any point lies within a limit; stops at the first chunk that holds one."""
        size = max(1, CHUNK // (64 * len(self.E)))
        return any(len(first) > 0 for _, first, _ in self.cells(limit, size))

    def count(self, limit: Fraction) -> int:
        """How many points lie within a limit."""
        return sum(int((last - first + 1).sum()) for _, first, last in self.cells(limit))

    def points(self, limit: Fraction) -> Points:
        """Every point within a limit."""
        parts, total = [], 0
        for cells, first, last in self.cells(limit):
            total += int((last - first + 1).sum())
            if total > MAX_POINTS:
                raise BadInput(
                    f"more than {MAX_POINTS:,} points lie within {float(limit):.4%}, too many to rank",
                    "use a coarser grid, or pin a dimension with --fix",
                )
            index, I = _expand(first, last)
            parts.append(replace(cells.take(index), I=self.I[I].astype(self.dtype)))
        return Points.join(parts) if parts else Points.of()

    def first_rung(self) -> tuple[Fraction, Points] | None:
        """The first rung of the ladder that holds a point, with its points; None if no point obeys the rules."""
        tolerance = self.problem.question.tolerance
        for rung in rungs() if len(self.pairs) else ():
            points = self.points(rung)
            if len(points):
                return rung, points
            if tolerance is not None and rung >= max(tolerance.flops, tolerance.params):
                break  # wider rungs are cut to the tolerance
        return None


def _expand(first: Any, last: Any) -> tuple[Any, Any]:
    """For inclusive ranges: the index of its range, and the value, of every member."""
    sizes = np.maximum(last - first + 1, 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return owner, np.asarray(first)[owner] + offset


def nearest_heads(base: ModelSpec, H: Any, d: Any, n_kv: Any) -> Any:
    """n_q, a multiple of n_kv, whose n_q·d is nearest to H·(Q0/H0); the smaller of two equally near."""
    wanted, unit = H * (base.num_attention_heads * base.head_dim), base.hidden_size * d * n_kv
    below = np.maximum(wanted // unit, 1)
    return n_kv * (below + (2 * wanted > (2 * below + 1) * unit))


def minimax(problem: Problem, points: Points) -> Fraction:
    """The smallest max(|flops|, |params|) over points, exactly (of those budgets that are matched)."""
    values = problem.values(points)
    names = [name for name in ("flops", "params") if name in problem.question.match]
    errors = {name: np.abs(values[name] - problem.targets[name]) for name in names}
    worst = np.max([np.asarray(errors[n], dtype=float) / problem.targets[n] for n in names], axis=0)
    near = np.flatnonzero(worst <= worst.min() * (1 + 1e-9) + 1e-15)
    return min(max(Fraction(int(errors[n][i]), problem.targets[n]) for n in names) for i in near.tolist())


@dataclass(frozen=True)
class Solution:
    """The exact answer to a problem.

    Attributes:
        floor: The signed KV deviation at its floor, or None when KV is not matched. Where two widths are equally near,
            one above and one below, it is that of the first match.
        rung: The first rung of max(|flops|, |params|) that holds a point.
        within: Points within the rung at the floor.
        minimax: The smallest max(|flops|, |params|) with KV at its floor.
        ranked: The first points of the total order, best first.
    """

    problem: Problem
    floor: Fraction | None
    rung: Fraction
    within: int
    minimax: Fraction
    ranked: list[tuple[int, ...]]


def solve(problem: Problem, top: int = 2) -> Solution | None:
    """The first ``top`` points of the total order, or None if no point obeys the rules and the tolerance.

    Points beyond the first rung are ranked too, up to 8 %, where the rung holds fewer than ``top``.
    """
    found = nearest_level(problem)
    if found is None:
        return None
    search, rung, points = found
    ranked = best(problem, points, top)
    previous = rung
    for wider in rungs():
        if len(ranked) >= top or wider > RUNGS[-1]:
            break
        if wider > rung:
            ranked += best(problem, _beyond(search, search.points(wider), previous), top - len(ranked))
            previous = wider
    floor = None
    if "kv" in problem.question.match:
        floor = problem.relative("kv", int(problem.values(Points.of(ranked[0]))["kv"][0]))
    return Solution(problem, floor, rung, len(points), minimax(problem, points), ranked)


def _beyond(search: Search, points: Points, rung: Fraction) -> Points:
    """The points that do not lie within a rung."""
    values = search.problem.values(points)
    inside = np.ones(len(points), dtype=bool)
    for budget in ("flops", "params"):
        if budget in search.problem.question.match:
            low, high = search.bounds(budget, rung)
            inside &= ((values[budget] >= low) & (values[budget] <= high)).astype(bool)
    return points.take(~inside)


def kv_levels(problem: Problem) -> list[set[int]]:
    """KV widths K = n_kv·d by how far they are from the baseline's cache, nearest first, within the tolerance.

    One level of all widths, when KV is not matched.
    """
    if "kv" not in problem.question.match:
        return [{d * n_kv for d, _, n_kv in problem.geometries}]
    tolerance = problem.question.tolerance
    by_distance: dict[Fraction, set[int]] = {}
    for K, deviation in kv_deviations(problem).items():
        if tolerance is None or abs(deviation) <= tolerance.kv:
            by_distance.setdefault(abs(deviation), set()).add(K)
    return [by_distance[distance] for distance in sorted(by_distance)]


def nearest_level(problem: Problem) -> tuple[Search, Fraction, Points] | None:
    """The nearest KV level that has a point, with its first rung and the points in it.

    That is the KV floor, unless the rules or the tolerance leave it without any point.
    """
    for widths in kv_levels(problem):
        search = Search(problem, widths)
        found = search.first_rung()
        if found is not None:
            return search, *found
    return None


def pure_minimax(problem: Problem, count_ties: bool = True) -> tuple[Fraction, int | None] | None:
    """The smallest max(|flops|, |params|, |kv|) over the whole grid, and how many points tie at it.

    Without ``count_ties`` one point of that value ends the search. None if no point obeys the rules.
    """
    by_floor: dict[Fraction, set[int]] = {}
    for K, deviation in kv_deviations(problem).items():
        by_floor.setdefault(abs(deviation), set()).add(K)
    value: Fraction | None = None
    searches: list[Search] = []
    for floor in sorted(by_floor):
        if value is not None and floor > value:
            break
        search = Search(problem, by_floor[floor])
        if search.any(floor):
            searches.append(search)
            value = floor
            break
        searches.append(search)
        found = search.first_rung()
        if found is not None:
            reached = minimax(problem, found[1])
            value = reached if value is None else min(value, reached)
    if value is None:
        return None
    return value, sum(search.count(value) for search in searches) if count_ties else None
