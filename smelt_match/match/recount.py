"""Budgets written a second time, for the verifier alone: pure Python integers, layer by layer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any


class Recount:
    """The budgets of configurations under the convention that a certificate states.

    Args:
        base: The certificate's ``baseline`` (vocabulary and tying).
        rule: Its ``convention``.
        attended: Attended tokens billed to each token.
        k: Experts for each token.
        ways: The divisor of the heads in looped blocks.
    """

    def __init__(self, base: Any, rule: Any, attended: Fraction, k: int, ways: int) -> None:
        self.rule, self.attended, self.k, self.ways = rule, attended, k, ways
        self.V: int = base["vocab_size"] or 0
        self.tied: bool = base["tie_word_embeddings"]
        self.scale = attended.denominator

    def cost(
        self, point: tuple[int, ...], groups: list[tuple[int, int]], loop: tuple[int, int] | None = None
    ) -> dict[str, int]:
        """FLOPs and attention FLOPs (scaled), stored and active parameters, KV elements, visit by visit."""
        H, E, I, d, n_q, n_kv = point
        inner = loop or (n_q // self.ways, n_kv // self.ways)
        per_visit = stored = active = cached = score_width = 0
        for blocks, visits in groups:
            q, kv = inner if visits > 1 else (n_q, n_kv)
            projections = H * q * d + 2 * H * kv * d + q * d * H
            used = projections + 3 * H * I * self.k
            used += H * E if self.rule["router"] else 0
            used += 2 * H if self.rule["norms"] else 0
            per_visit += blocks * visits * used
            stored += blocks * (projections + H * E + E * 3 * H * I + 2 * H)
            active += blocks * (projections + H * E + self.k * 3 * H * I + 2 * H)
            cached += blocks * visits * (kv * d + kv * d)
            score_width += blocks * visits * q * d
        per_visit += H if self.rule["norms"] else 0
        stored += H
        active += H
        if self.rule["head"]:
            per_visit += self.V * H
            active += self.V * H
            stored += 0 if self.tied and self.rule["input_embedding"] else self.V * H
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

    def budget(self, cost: dict[str, int]) -> dict[str, int]:
        """Budgets under the names of a document; FLOPs rounded half to even."""
        return {
            "flops_train_per_token": round(Fraction(cost["flops"], self.scale)),
            "flops_attention_train_per_token": round(Fraction(cost["attention"], self.scale)),
            "params_total": cost["params"],
            "params_active": cost["active"],
            "kv_elements_per_token": cost["kv"],
        }
