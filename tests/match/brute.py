"""Matching by brute force: every point of a small grid, in plain Python, sharing no code with solver or verifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

LADDER = [Fraction(1, 1000), Fraction(1, 500), Fraction(7, 2000), Fraction(1, 200), Fraction(1, 100), Fraction(1, 50),
          Fraction(1, 25), Fraction(2, 25)]  # fmt: skip


@dataclass(frozen=True)
class Model:
    """H, E, k, I, d, n_q, n_kv, and the visits of each block with the heads of looped ones."""

    H: int
    E: int
    k: int
    I: int
    d: int
    n_q: int
    n_kv: int
    counts: tuple[int, ...]
    divisor: int = 1

    def budgets(self, c: Fraction, norms_cost: bool = False, router_costs: bool = True) -> dict[str, Fraction]:
        """Flops, params, kv and attention, block by block and visit by visit."""
        flops = attention = Fraction(0)
        params = self.H
        kv = 0
        for count in self.counts:
            q, groups = (self.n_q // self.divisor, self.n_kv // self.divisor) if count > 1 else (self.n_q, self.n_kv)
            qkvo = 2 * self.H * self.d * (q + groups)
            expert = 3 * self.H * self.I
            params += qkvo + self.H * self.E + self.E * expert + 2 * self.H
            for _ in range(count):
                weights = qkvo + self.k * expert + (self.H * self.E if router_costs else 0)
                weights += 2 * self.H if norms_cost else 0
                flops += 6 * weights + 12 * q * self.d * c
                attention += 12 * q * self.d * c
                kv += 2 * groups * self.d
        flops += 6 * self.H if norms_cost else 0
        return {"flops": flops, "params": Fraction(params), "kv": Fraction(kv), "attention": attention}


@dataclass(frozen=True)
class Search:
    """A small problem: a baseline, the visits of the answer, axes, and the rules in force."""

    baseline: Model
    counts: tuple[int, ...]
    axes: dict[str, list[int]]
    c: Fraction
    heads: str = "free-kv"
    envelope: Fraction | None = None
    one_sided: bool = False
    match: tuple[str, ...] = ("flops", "params", "kv")
    divisor: int = 1
    norms_cost: bool = False
    router_costs: bool = True

    def every_point(self) -> Iterator[Model]:
        """All points that obey the hard rules."""
        base = self.baseline
        kept_q = self.heads == "kept" or self.divisor > 1
        kept_kv = self.heads != "free-kv" or self.divisor > 1
        for H, E, I, d, n_q, n_kv in product(
            self.axes["H"], self.axes["E"], self.axes["I"],
            [base.d] if self.divisor > 1 else self.axes["d"],
            [base.n_q] if kept_q else self.axes["n_q"],
            [base.n_kv] if kept_kv else self.axes["n_kv"],
        ):  # fmt: skip
            if E < base.k or n_q % n_kv:
                continue
            if self.heads == "q-width" and self.divisor == 1:
                aim = Fraction(H * base.n_q * base.d, base.H)
                steps = [n_kv * m for m in range(1, 200)]
                if n_q != min(steps, key=lambda heads: (abs(heads * d - aim), heads)):
                    continue
            if self.envelope is not None:
                for ours, theirs in ((n_q * d, base.n_q * base.d), (I, base.I)):
                    ratio = Fraction(ours, H) / Fraction(theirs, base.H)
                    if not 1 / self.envelope <= ratio <= self.envelope:
                        break
                else:
                    yield Model(H, E, base.k, I, d, n_q, n_kv, self.counts, self.divisor)
                continue
            yield Model(H, E, base.k, I, d, n_q, n_kv, self.counts, self.divisor)

    def deviations(self, model: Model) -> dict[str, Fraction]:
        """Signed and relative to the baseline."""
        mine = model.budgets(self.c, self.norms_cost, self.router_costs)
        base = self.baseline.budgets(self.c, self.norms_cost, self.router_costs)
        return {name: (mine[name] - base[name]) / base[name] for name in mine}

    def answer(self) -> tuple[list[tuple[int, ...]], Fraction, int, Fraction, tuple[Fraction, int]] | None:
        """(ranked points, rung, points within it, minimax at the floor, minimax of all three with its ties)."""
        rows = [(model, self.deviations(model)) for model in self.every_point()]
        kv_values = {off["kv"] for off in self._all_kv()}
        if self.one_sided:
            rows = [row for row in rows if all(row[1][name] <= 0 for name in self.match)]
            kv_values = {value for value in kv_values if value <= 0}
        if "kv" in self.match and not kv_values:
            return None
        everything = rows
        if not rows:
            return None
        if "kv" in self.match:
            level = min(abs(off["kv"]) for _, off in rows)
            rows = [row for row in rows if abs(row[1]["kv"]) == level]
        judged = [name for name in ("flops", "params") if name in self.match]
        worst = [max(abs(off[name]) for name in judged) for _, off in rows]
        minimax = min(worst)
        ladder = list(LADDER)
        while ladder[-1] < minimax:
            ladder.append(ladder[-1] * 2)
        rung = next(step for step in ladder if minimax <= step)
        within = [row for row, value in zip(rows, worst, strict=True) if value <= rung]
        reach = max(rung, LADDER[-1])
        near = [(row, value) for row, value in zip(rows, worst, strict=True) if value <= reach]
        steps = {id(row): next(step for step in ladder if value <= step) for row, value in near}
        ranked = sorted((row for row, _ in near), key=lambda row: (steps[id(row)], *self._key(*row)))
        points = [(m.H, m.E, m.I, m.d, m.n_q, m.n_kv) for m, _ in ranked]
        pure = [max(abs(off[name]) for name in ("flops", "params", "kv")) for _, off in everything]
        return points, rung, len(within), minimax, (min(pure), pure.count(min(pure)))

    def _all_kv(self) -> list[dict[str, Fraction]]:
        """KV deviations of every head geometry the head rule leaves, whether or not an H goes with it."""
        base = self.baseline
        ds = [base.d] if self.divisor > 1 else self.axes["d"]
        qs = [base.n_q] if self.heads == "kept" or self.divisor > 1 else self.axes["n_q"]
        kvs = [base.n_kv] if self.heads != "free-kv" or self.divisor > 1 else self.axes["n_kv"]
        return [
            self.deviations(Model(1, 1, 1, 1, d, q, kv, self.counts, self.divisor))
            for d, q, kv in product(ds, qs, kvs)
            if q % kv == 0
        ]

    def _key(self, model: Model, off: dict[str, Fraction]) -> tuple[object, ...]:
        base = self.baseline
        shape = abs(math.log(model.I * base.H / (model.H * base.I)))
        shape += 0.5 * abs(math.log(model.n_q / model.n_kv / (base.n_q / base.n_kv)))
        shape += 0.25 * abs(math.log(model.n_kv / base.n_kv))
        point = (model.H, model.E, model.I, model.d, model.n_q, model.n_kv)
        leximax = sorted((abs(off[name]) for name in self.match), reverse=True)
        return abs(off["attention"]), round(shape / 0.005), 0, leximax, point
