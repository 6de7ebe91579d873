"""An independent check of a certificate.

Nothing here is shared with the solver: the formulas are written again (in `recount`), in pure Python integers that
cannot wrap, and the search runs the other way round (over H and I, solving for E, where the solver runs over H and E
and solves for I). A certificate that passes was therefore found twice, by two programs. An import contract keeps it
so.
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

FORMULA_VERSION = 1
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


def verify(document: Any, where: str) -> list[Check]:
    """Recompute every claim of a `solve` document (or of its certificate alone).

    Raises:
        BadInput: If the document is not one, or was made by another version of the formulas.
    """
    try:
        return _verify(document)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        ZeroDivisionError,
        OverflowError,
    ) as error:
        raise BadInput(
            f"{where}: not a certificate: {type(error).__name__}: {error}",
            "make one with `smelt-match solve … --format json -o FILE`",
        ) from None


def _verify(document: Any) -> list[Check]:
    if "results" in document:
        if not document["results"]:
            raise ValueError("it claims no match")
        return [
            Check(f"{result['baseline']['name']}: {check.name}", check.claimed, check.found)
            for result in document["results"]
            for check in _verify(result)
        ]
    proof = document.get("certificate", document)
    if proof["formula_version"] != FORMULA_VERSION:
        raise ValueError(f"formula version {proof['formula_version']}, this program knows {FORMULA_VERSION}")
    checks = []
    for policy, entry in proof["policies"].items():
        if entry is None:
            continue
        claim = _Claim(entry)
        found = [*claim.checks(), *(claim.agreement(document, policy) if "matches" in document else [])]
        checks += [Check(f"{policy}: {check.name}", check.claimed, check.found) for check in found]
    if not checks:
        raise ValueError("it claims no match")
    return checks


def _fraction(text: Any) -> Fraction:
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


class _Claim:
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
        self.envelope = None if envelope is None else _fraction(envelope)
        self.match, self.one_sided = entry["match"], entry["one_sided"]
        tolerance = entry["tolerance"]
        self.tolerance = None if tolerance is None else {name: _fraction(t) for name, t in tolerance.items()}
        attended = _fraction(entry["convention"]["attended_tokens"])
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

    def floor(self) -> tuple[Fraction, list[int]]:
        """The size of the KV floor and the widths that reach it, from every head geometry of the grid."""
        known: dict[int, Fraction] = {}
        for d, n_q, n_kv in self.geometries():
            if d * n_kv not in known:
                known[d * n_kv] = self.off((1, 1, 1, d, n_q, n_kv), "kv")
        allowed = {K: value for K, value in known.items() if value <= 0 or not self.one_sided}
        best = min(abs(value) for value in allowed.values())
        return best, sorted(K for K, value in allowed.items() if abs(value) == best)

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
        floor, widths = self.floor() if "kv" in self.match else (None, None)
        all_widths = widths if widths is not None else sorted({d * n_kv for d, _, n_kv in self.geometries()})
        claimed_floor = entry["kv_floor"]
        checks = [
            Check("targets", str(entry["targets"]), str({"flops_scale": self.recount.scale, **self.target})),
            Check(
                "KV floor",
                str(claimed_floor and (_text(abs(_fraction(claimed_floor["deviation"]))), claimed_floor["kv_widths"])),
                str((floor is not None and (_text(floor), widths)) or None),
            ),
        ]
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
        if self.tolerance is not None and floor is not None:
            checks.append(Check("KV within tolerance", "True", str(floor <= self.tolerance["kv"])))
        rung = _fraction(entry["rung"])
        points = self.points(rung, all_widths)
        checks.append(Check("points within the rung", str(entry["points_within_rung"]), str(len(points))))
        if not points:
            return checks
        smallest = min(self.worst(point) for point in points)
        checks.append(Check("minimax of |flops|, |params|", str(entry["minimax_flops_params"]), _text(smallest)))
        checks.append(Check("rung", str(rung), str(self._rung(smallest))))
        ranked = sorted(points, key=self.order)
        checks.append(Check("optimum", _sizes(entry["optimum"]), str(ranked[0])))
        runner_up = entry["runner_up"] and _sizes(entry["runner_up"])
        checks.append(Check("runner-up", str(runner_up), str(ranked[1]) if len(ranked) > 1 else "None"))
        deviation = {budget: _text(self.off(ranked[0], budget)) for budget in self.target}
        checks.append(Check("deviations", str(entry["deviation"]), str(deviation)))
        if claimed_floor is not None:
            checks.append(Check("sign of the KV floor", claimed_floor["deviation"], deviation["kv"]))
        if entry["minimax_all"] is not None:
            value, count = self._minimax_all(_fraction(entry["minimax_all"]["deviation"]))
            checks.append(
                Check(
                    "minimax of all three",
                    str(entry["minimax_all"]),
                    str({"deviation": value, "points": count}),
                )
            )
        return checks

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
        return _text(smallest), values.count(smallest)

    def agreement(self, document: Any, policy: str) -> list[Check]:
        """The rest of a `solve` document says the same as its certificate."""
        rows = [row for row in document["matches"] if row["policy"] == policy and row["rank"] == 1]
        if not rows:
            return [Check("first match", "missing", "present")]
        config, optimum = rows[0]["config"], self.entry["optimum"]
        point = tuple(_whole(optimum[name]) for name in AXES)
        cost = self.recount.cost(point, self.groups)
        looped = any(group.visits > 1 for group in self.groups)
        ways = self.ways if looped else 1
        expected = {
            **optimum,
            "num_layers": sum(group.number for group in self.groups),
            "experts_per_token": self.k,
            "loop_num_attention_heads": optimum["num_attention_heads"] // ways,
            "loop_num_key_value_heads": optimum["num_key_value_heads"] // ways,
        }
        deviation = {budget: float(self.off(point, budget)) for budget in self.target}
        return [
            Check("first match", _sorted(config), _sorted(expected)),
            Check("first match's budget", _sorted(rows[0]["budget"]), _sorted(self.recount.budget(cost))),
            Check("first match's deviations", str(rows[0]["deviation"]), str(deviation)),
            Check("baseline", str(document["baseline"]["config"]), str(self.base["config"])),
            Check(
                "baseline's budget",
                _sorted(document["baseline"]["budget"]),
                _sorted(self.recount.budget(self.base_cost)),
            ),
            Check("layout", str(document["layout"]["visits"]), str(self.entry["layout"]["visits"])),
        ]


def _sorted(values: Any) -> str:
    return str(sorted(values.items()))


def _text(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"


def _sizes(point: Any) -> str:
    return str(tuple(point[name] for name in AXES))
