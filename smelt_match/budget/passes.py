"""A loop at other numbers of passes: its forward pass, and training with a drawn number, expected and at worst."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.ledger import Budget, ledger
from smelt_match.errors import BadInput
from smelt_match.spec.model import ModelSpec
from smelt_match.units import round_half_even


def with_passes(spec: ModelSpec, passes: int) -> ModelSpec:
    """The same weights with another number of passes through the loop; a pass leaves no trace of looping.

    At one pass the layout loops nothing, and what belongs to a loop would have no place: `BadInput`.
    """
    layout = spec.visits.with_passes(passes)
    if layout.is_unlooped and (spec.loop is not None or spec.backward_visits is not None):
        raise BadInput(f"{spec.name}: at one pass nothing is looped, but the spec has attributes of a loop")
    back, loop = spec.backward_visits, spec.loop
    kept: dict[str, Any] = {} if back is None else {"backward_visits": min(back, passes)}
    if loop is not None and loop.kv_ring is not None:
        kept["loop"] = loop.model_dump(exclude_unset=True) | {"kv_ring": min(loop.kv_ring, passes)}
    return spec.changed(layout=layout.canonical, **kept)


def flops_forward(spec: ModelSpec, convention: Convention, context: Context) -> Fraction:
    """FLOPs per token of a forward pass: a third of training's where the backward pass goes through every visit."""
    whole = spec if spec.backward_visits is None else spec.changed(backward_visits=None)
    return ledger(whole, convention, context).budget.flops / 3


@dataclass(frozen=True)
class Drawn:
    """Budgets of a model whose number of passes is drawn in training.

    Attributes:
        distribution: What it is drawn from.
        expected: At the mean, which the layout states. FLOPs without a truncated backward pass and the KV cache of
            one slot a visit are linear in the passes, so that this is their mean.
        worst: At the greatest number, or None where it is unbounded.
    """

    distribution: str
    expected: Budget
    worst: Budget | None

    def as_json(self) -> dict[str, Any]:
        """Both budgets, the worst null where it is unbounded."""
        worst = None if self.worst is None else self.worst.as_json()
        return {"distribution": self.distribution, "expected": self.expected.as_json(), "worst": worst}

    @property
    def words(self) -> str:
        """What is counted, and what the worst case would be."""
        start = f"passes drawn from {self.distribution}: the mean is counted, the worst case is "
        if self.worst is None:
            return start + "unbounded"
        flops, kv = round_half_even(self.worst.flops), self.worst.kv
        return start + f"{flops:,} train FLOPs and {kv:,} KV elements per token"


def drawn(spec: ModelSpec, convention: Convention, context: Context) -> Drawn | None:
    """Expected and worst budgets, or None where the number of passes is fixed."""
    sampled = None if spec.loop is None else spec.loop.sampled
    if sampled is None:
        return None
    expected = ledger(spec, convention, context).budget
    if sampled.most is None:
        return Drawn(sampled.distribution, expected, None)
    return Drawn(sampled.distribution, expected, ledger(with_passes(spec, sampled.most), convention, context).budget)
