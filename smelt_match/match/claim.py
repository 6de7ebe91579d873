"""One policy's claim in a certificate, searched again from scratch.

The search runs over H and I and solves for E, where the solver runs over H and E and solves for I.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from smelt_match.errors import BadInput
from smelt_match.match.recount import Blocks, Recount

AXES = ("hidden_size", "num_experts", "expert_intermediate_size", "head_dim",
        "num_attention_heads", "num_key_value_heads")  # fmt: skip
LADDER = [Fraction(1, 1000), Fraction(2, 1000), Fraction(35, 10_000), Fraction(5, 1000),
          Fraction(1, 100), Fraction(2, 100), Fraction(4, 100), Fraction(8, 100)]  # fmt: skip
MAX_WORK = 200_000_000
MAX_POINTS = 5_000_000
Point = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Check:
    """One claim of a certificate, as written and as recomputed."""

    name: str
    claimed: str
    found: str

    @property
    def holds(self) -> bool:
        """Whether both agree."""
        return self.claimed == self.found


def read_fraction(text: Any) -> Fraction:
    if not isinstance(text, str) or len(text) > 400:
        raise ValueError(f"{str(text)[:40]!r} is not a num/den")
    return Fraction(text)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
        raise ValueError(f"{str(value)[:40]!r} is not a size")
    return value


def _values(axis: Any) -> list[int]:
    if "values" in axis:
        return sorted({_whole(value) for value in axis["values"]})
    low, high, step = (_whole(axis[name]) for name in ("min", "max", "step"))
    if (high - low) // step > 2**21:
        raise ValueError("an axis has too many values")
    return list(range(low, high + 1, step))


def _blocks(groups: Any) -> list[Blocks]:
    return [Blocks(_whole(group["blocks"]), _whole(group["visits"]), group["form"]) for group in groups]


class Claim:
    """One policy's certificate, with budgets written from scratch."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.base = entry["baseline"]
        self.config = {name: _whole(value) for name, value in self.base["config"].items()}
        self.k = self.config["experts_per_token"]
        self.ways = _whole(entry["loop_head_divisor"])
        self.groups = _blocks(entry["layout"]["groups"])
        self.axes = {name: _values(entry["grid"]["axes"][name]) for name in AXES}
        envelope = entry["grid"]["envelope"]
        self.envelope = None if envelope is None else read_fraction(envelope)
        self.match, self.one_sided = entry["match"], entry["one_sided"]
        tolerance = entry["tolerance"]
        self.tolerance = None if tolerance is None else {name: read_fraction(t) for name, t in tolerance.items()}
        attended = read_fraction(entry["convention"]["attended_tokens"])
        self.recount = Recount(self.base, entry["convention"], attended, self.k, self.ways)
        config = self.config
        base_point = tuple(config[name] for name in AXES)
        loop = config["loop_num_attention_heads"], config["loop_num_key_value_heads"]
        self.base_groups = _blocks(self.base["groups"])
        self.base_cost = self.recount.cost(base_point, self.base_groups, loop)
        self.target = {budget: self.base_cost[budget] for budget in ("flops", "params", "kv", "attention")}
        self._found: dict[tuple[Fraction, frozenset[int], bool], list[Point]] = {}

    def off(self, point: tuple[int, ...], budget: str) -> Fraction:
        """A signed deviation of a point."""
        target = self.target[budget]
        return Fraction(self.recount.cost(point, self.groups)[budget] - target, target) if target else Fraction(0)

    def levels(self) -> list[tuple[Fraction, list[int]]]:
        """KV widths by their distance from the baseline's cache, nearest first, within the tolerance."""
        known: dict[int, Fraction] = {}
        for d, n_q, n_kv in self.geometries():
            if d * n_kv not in known:
                known[d * n_kv] = self.off((1, 1, 1, d, n_q, n_kv), "kv")
        if "kv" not in self.match:
            return [(Fraction(0), sorted(known))]
        found: dict[Fraction, list[int]] = {}
        for K in sorted(known):
            if known[K] <= 0 or not self.one_sided:
                found.setdefault(abs(known[K]), []).append(K)
        limit = None if self.tolerance is None else self.tolerance["kv"]
        return [(distance, found[distance]) for distance in sorted(found) if limit is None or distance <= limit]

    def geometries(self) -> Iterator[tuple[int, int, int]]:
        for d in self.axes["head_dim"]:
            for n_kv in self.axes["num_key_value_heads"]:
                for n_q in self.axes["num_attention_heads"]:
                    if n_q % n_kv == 0:
                        yield d, n_q, n_kv

    def within_envelope(self, ours: int, H: int, theirs: int) -> bool:
        if self.envelope is None:
            return True
        ratio = Fraction(ours * self.config["hidden_size"], H * theirs)
        return 1 / self.envelope <= ratio <= self.envelope

    def fits_width(self, H: int, d: int, n_q: int, n_kv: int) -> bool:
        """Under `q-width`, n_q is the multiple of n_kv whose width is nearest to H·(Q0/H0)."""
        if self.entry["heads"] != "q-width" or self.entry["policy"] != "uniform":
            return True
        wanted = Fraction(H * self.config["num_attention_heads"] * self.config["head_dim"], self.config["hidden_size"])
        near = max(1, wanted // (d * n_kv))
        return n_q == min((near * n_kv, (near + 1) * n_kv), key=lambda heads: (abs(heads * d - wanted), heads))

    def range_of(self, budget: str, limit: Fraction, use_tolerance: bool) -> tuple[Fraction, Fraction]:
        if use_tolerance and self.tolerance is not None:
            limit = min(limit, self.tolerance[budget])
        target = self.target[budget]
        return target * (1 - limit), target * (Fraction(1) if self.one_sided else 1 + limit)

    def points(self, limit: Fraction, widths: list[int], use_tolerance: bool = True) -> list[Point]:
        """Every point within a limit whose KV width is one of ``widths``, by a scan over geometry, H and I."""
        key = (limit, frozenset(widths), use_tolerance)
        if key not in self._found:
            found = list(islice(self._scan(limit, set(widths), use_tolerance), MAX_POINTS + 1))
            if len(found) > MAX_POINTS:
                raise BadInput(f"the certificate claims a rung with more than {MAX_POINTS:,} points")
            self._found[key] = found
        return self._found[key]

    def _scan(self, limit: Fraction, widths: set[int], use_tolerance: bool) -> Iterator[Point]:
        geometries = [geometry for geometry in self.geometries() if geometry[0] * geometry[2] in widths]
        if len(geometries) * len(self.axes["hidden_size"]) * len(self.axes["expert_intermediate_size"]) > MAX_WORK:
            raise BadInput("the certificate's grid is too large to verify here")
        ranges = {
            budget: tuple(
                side(bound)
                for side, bound in zip(
                    (math.ceil, math.floor), self.range_of(budget, limit, use_tolerance), strict=True
                )
            )
            for budget in ("flops", "params")
            if budget in self.match
        }
        Es = self.axes["num_experts"]
        Q0 = self.config["num_attention_heads"] * self.config["head_dim"]
        I0 = self.config["expert_intermediate_size"]
        for d, n_q, n_kv in geometries:
            for H in self.axes["hidden_size"]:
                if not self.within_envelope(n_q * d, H, Q0) or not self.fits_width(H, d, n_q, n_kv):
                    continue
                for I in self._promising(H, d, n_q, n_kv, ranges):
                    if not self.within_envelope(I, H, I0):
                        continue
                    at = [self.recount.cost((H, E, I, d, n_q, n_kv), self.groups) for E in (0, 1)]
                    first, last = Es[0], Es[-1]
                    for budget, (low, high) in ranges.items():
                        start, slope = at[0][budget], at[1][budget] - at[0][budget]
                        if slope:
                            first = max(first, -((start - low) // slope))
                            last = min(last, (high - start) // slope)
                        elif not low <= start <= high:
                            last = -1
                    for index in range(bisect_left(Es, first), bisect_right(Es, last)):
                        yield H, Es[index], I, d, n_q, n_kv

    def _promising(self, H: int, d: int, n_q: int, n_kv: int, ranges: dict[str, tuple[int, ...]]) -> list[int]:
        """The values of I that FLOPs do not rule out for every E."""
        axis, Es = self.axes["expert_intermediate_size"], self.axes["num_experts"]
        if "flops" not in ranges:
            return axis
        low, high = ranges["flops"]
        empty, full = (self.recount.cost((H, E, 0, d, n_q, n_kv), self.groups)["flops"] for E in (Es[0], Es[-1]))
        slope = self.recount.cost((H, Es[0], 1, d, n_q, n_kv), self.groups)["flops"] - empty
        return axis[bisect_left(axis, -((full - low) // slope)) : bisect_right(axis, (high - empty) // slope)]

    def worst(self, point: Point) -> Fraction:
        return max(abs(self.off(point, budget)) for budget in ("flops", "params") if budget in self.match)

    def order(self, point: Point) -> tuple[Any, ...]:
        """The total order among points of one KV floor and one rung."""
        H, _, I, _, n_q, n_kv = point
        base = self.config
        shape = (
            abs(math.log(I * base["hidden_size"] / (H * base["expert_intermediate_size"])))
            + 0.5 * abs(math.log(n_q / n_kv / (base["num_attention_heads"] / base["num_key_value_heads"])))
            + 0.25 * abs(math.log(n_kv / base["num_key_value_heads"]))
        )
        sizes = dict(zip(AXES, point, strict=True))
        penalty = 0
        for rule in self.entry["hardware_rules"]:
            size, step, allowed = sizes[rule["quantity"]], rule["multiple_of"], rule["one_of"]
            holds = size % step == 0 if step is not None else size in allowed
            penalty += 0 if holds else rule["penalty"]
        matched = sorted((abs(self.off(point, budget)) for budget in self.match), reverse=True)
        return abs(self.off(point, "attention")), round(shape / 0.005), penalty, matched, point

    def checks(self) -> list[Check]:
        """Every claim, recomputed."""
        entry = self.entry
        checks = [Check("targets", str(entry["targets"]), str({"flops_scale": self.recount.scale, **self.target}))]
        config, looped = self.config, any(group.visits > 1 for group in self.base_groups)
        inner = config["loop_num_attention_heads"], config["loop_num_key_value_heads"]
        outer = config["num_attention_heads"], config["num_key_value_heads"]
        blocks = sum(group.number for group in self.base_groups)
        checks.append(Check("baseline's depth", str(config["num_layers"]), str(blocks)))
        checks.append(Check("baseline's loop heads", str(inner), str(inner if looped else outer)))
        visits = entry["layout"]["visits"]
        tally = sorted(visits.count(block) for block in set(visits))
        expanded = sorted(group.visits for group in self.groups for _ in range(group.number))
        checks.append(Check("visits", str(tally), str(expanded)))
        if entry["minimax_all"] is not None:
            value, count = self._minimax_all(read_fraction(entry["minimax_all"]["deviation"]))
            found = {"deviation": value, "points": count}
            checks.append(Check("minimax of all three", str(entry["minimax_all"]), str(found)))
        anything = Fraction(10**30)  # wider than any rung: only rules and tolerance bind
        level = next((row for row in self.levels() if next(self._scan(anything, set(row[1]), True), None)), None)
        if entry["optimum"] is None:
            return [*checks, Check("no point within the tolerance", "True", str(level is None))]
        if level is None:
            return [*checks, Check("optimum", _sizes(entry["optimum"]), "no point obeys the rules")]
        return checks + self._search_claims(*level)

    def _search_claims(self, distance: Fraction, widths: list[int]) -> list[Check]:
        """The claims about the points at the nearest KV level that has any."""
        entry, claimed = self.entry, self.entry["kv_level"]
        told = claimed and (as_text(abs(read_fraction(claimed["deviation"]))), claimed["kv_widths"])
        checks = [Check("KV level", str(told), str((as_text(distance), widths) if "kv" in self.match else None))]
        rung = read_fraction(entry["rung"])
        points = self.points(rung, widths)
        checks.append(Check("points within the rung", str(entry["points_within_rung"]), str(len(points))))
        if not points:
            return checks
        smallest = min(self.worst(point) for point in points)
        ranked = self._ranked(rung, points, widths)
        deviation = {budget: as_text(self.off(ranked[0], budget)) for budget in self.target}
        runner_up = entry["runner_up"] and _sizes(entry["runner_up"])
        return [
            *checks,
            Check("minimax of |flops|, |params|", str(entry["minimax_flops_params"]), as_text(smallest)),
            Check("rung", str(rung), str(self._rung(smallest))),
            Check("optimum", _sizes(entry["optimum"]), str(ranked[0])),
            Check("runner-up", str(runner_up), str(ranked[1]) if len(ranked) > 1 else "None"),
            Check("deviations", str(entry["deviation"]), str(deviation)),
            Check("KV deviation", str(claimed and claimed["deviation"]), str(claimed and deviation["kv"])),
        ]

    def _ranked(self, rung: Fraction, points: list[Point], widths: list[int]) -> list[Point]:
        """The points of the rung in order, and where there is just one, the first of the next rungs up to 8 %."""
        ranked = sorted(points, key=self.order)
        for wider in LADDER:
            if len(ranked) < 2 and wider > rung:
                more = [point for point in self.points(wider, widths) if point not in ranked]
                ranked += sorted(more, key=lambda point: (self._rung(self.worst(point)), self.order(point)))
        return ranked

    @staticmethod
    def _rung(value: Fraction) -> Fraction:
        rungs = list(LADDER)
        while rungs[-1] < value:
            rungs.append(rungs[-1] * 2)
        return next(rung for rung in rungs if value <= rung)

    def _minimax_all(self, claimed: Fraction) -> tuple[str, int]:
        """The smallest max of all three deviations and its ties, among points no worse than the claim."""
        widths = []
        for K in sorted({d * n_kv for d, _, n_kv in self.geometries()}):
            geometry = next(g for g in self.geometries() if g[0] * g[2] == K)
            value = self.off((1, 1, 1, *geometry), "kv")
            if abs(value) <= claimed and (value <= 0 or not self.one_sided):
                widths.append(K)
        values = [max(self.worst(p), abs(self.off(p, "kv"))) for p in self.points(claimed, widths, use_tolerance=False)]
        smallest = min(values, default=Fraction(-1))
        return as_text(smallest), values.count(smallest)

    def floor_told(self) -> float | None:
        """The signed KV floor, tolerance aside; of two equally near widths, the optimum's."""
        if "kv" not in self.match:
            return None
        values = {self.off((1, 1, 1, d, q, kv), "kv") for d, q, kv in self.geometries()}
        values = {value for value in values if value <= 0 or not self.one_sided}
        nearest = sorted(value for value in values if abs(value) == min(map(abs, values)))
        optimum = self.entry["optimum"]
        if optimum is not None:
            chosen = self.off(tuple(optimum[name] for name in AXES), "kv")
            nearest = [chosen] if chosen in nearest else nearest
        return float(nearest[0])


def as_text(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def _sizes(point: Any) -> str:
    return str(tuple(point[name] for name in AXES))
