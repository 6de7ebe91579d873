"""Budgets written a second time, for the verifier alone: pure Python integers, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Blocks:
    """Equal blocks of a certificate: how many, how often each is visited, and what they have."""

    number: int
    visits: int
    form: dict[str, Any]


class Recount:
    """The budgets of configurations under the convention that a certificate states.

    Args:
        base: The certificate's ``baseline`` (vocabulary and ends).
        rule: Its ``convention``.
        attended: Attended tokens billed to each token.
        k: Experts for each token.
        ways: The divisor of the heads in looped blocks.
    """

    def __init__(self, base: Any, rule: Any, attended: Fraction, k: int, ways: int) -> None:
        self.rule, self.attended, self.k, self.ways = rule, attended, k, ways
        self.V: int = base["vocab_size"] or 0
        self.head_rows: int = base.get("head_vocab_size") or self.V
        self.head_bias: bool = base.get("output_head_bias", False)
        self.tied: bool = base["tie_word_embeddings"]
        self.final_norm: bool = base["final_norm"]
        self.scale = attended.denominator

    def cost(self, point: tuple[int, ...], groups: list[Blocks], loop: tuple[int, int] | None = None) -> dict[str, int]:
        """FLOPs and attention FLOPs (scaled), stored and active parameters, KV elements, visit by visit."""
        H, E, I, d, n_q, n_kv = point
        inner = loop or (n_q // self.ways, n_kv // self.ways)
        per_visit = stored = active = cached = score_width = 0
        norm_bias = False
        for group in groups:
            q, kv = inner if group.visits > 1 else (n_q, n_kv)
            norm_bias = group.form["norm_bias"]
            for kept, used, kind in self._parts(group.form, H, E, I, d, q, kv):
                stored += group.number * kept
                active += group.number * used
                if kind == "matmul" or self.rule[kind]:
                    per_visit += group.number * group.visits * used
            cached += group.number * group.visits * (kv * d + kv * d)
            score_width += group.number * group.visits * q * d
        last = H * (2 if norm_bias else 1) if self.final_norm else 0
        per_visit += last if self.rule["norms"] else 0
        stored += last
        active += last
        if self.rule["head"]:
            head, bias = self.head_rows * H, self.head_rows if self.head_bias else 0
            per_visit += head + (bias if self.rule["norms"] else 0)
            active += head + bias
            stored += bias if self.tied and self.rule["input_embedding"] else head + bias
        if self.rule["input_embedding"]:
            stored += self.V * H
        attention = 12 * score_width * self.attended.numerator if self.rule["bills_attention"] else 0
        return {
            "flops": 6 * per_visit * self.scale + attention,
            "params": stored,
            "kv": cached,
            "attention": attention,
            "active": active,
        }

    def _parts(
        self, form: dict[str, Any], H: int, E: int, I: int, d: int, q: int, kv: int
    ) -> Iterator[tuple[int, int, str]]:
        """(stored, active, what bills it) of each part of one block."""
        m = form["matrices"]
        yield (whole := H * q * d + 2 * H * kv * d + q * d * H), whole, "matmul"
        if form["gate"]:
            yield H * q * d, H * q * d, "matmul"
        gains = form["norms"] * H * (2 if form["norm_bias"] else 1)
        gains += (q * d + 2 * kv * d if form["attention_bias"] else 0) + (H if form["output_bias"] else 0)
        gains += (q if form["sinks"] else 0) + {"none": 0, "head": d + d, "width": q * d + kv * d}[form["qk_norm"]]
        if form["F"]:
            yield m * H * form["F"], m * H * form["F"], "matmul"
            gains += (m - 1) * form["F"] + H if form["mlp_bias"] else 0
        else:
            yield H * E, H * E, "router"
            yield E * m * H * I, self.k * m * H * I, "matmul"
            gains += E if form["router_bias"] else 0
            if form["mlp_bias"]:
                yield E * ((m - 1) * I + H), self.k * ((m - 1) * I + H), "norms"
        if form["S"]:
            shared = m * H * form["S"] + (H if form["shared_gate"] else 0)
            yield shared, shared, "matmul"
        yield gains, gains, "norms"

    def budget(self, cost: dict[str, int]) -> dict[str, int]:
        """Budgets under the names of a document; FLOPs rounded half to even."""
        return {
            "flops_train_per_token": round(Fraction(cost["flops"], self.scale)),
            "flops_attention_train_per_token": round(Fraction(cost["attention"], self.scale)),
            "params_total": cost["params"],
            "params_active": cost["active"],
            "kv_elements_per_token": cost["kv"],
        }
