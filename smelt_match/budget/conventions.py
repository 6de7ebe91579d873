"""Counting conventions as a table. Every number that leaves the program names its row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from smelt_match.budget.context import Context
from smelt_match.errors import BadInput, close_names


@dataclass(frozen=True)
class Convention:
    """What one way of counting bills.

    Attributes:
        name: How output names it.
        router: Whether the router's matrix costs FLOPs.
        norms: Whether normalisation gains cost FLOPs (6 for each parameter, as 6N does).
        input_embedding: Whether the input embedding joins the parameter columns. A look-up costs no FLOPs.
        head: Whether the output head joins all columns. Needs the vocabulary.
        attention: Tokens that attention is billed for: ``mean`` the mean attended context c, ``half`` s/2,
            ``full`` s, ``none`` nothing, where s = 2c − 1.
        window: What a sliding window does to that: ``exact``, ``clipped`` to min(s, W), or ``ignored``.
        source: Where the rule stands.
    """

    name: str
    router: bool
    norms: bool
    input_embedding: bool
    head: bool
    attention: Literal["mean", "half", "full", "none"]
    window: Literal["exact", "clipped", "ignored"]
    source: str

    def attended(self, context: Context) -> Fraction:
        """Tokens of attention billed to each token, an exact rational."""
        sequence = context.sequence
        if self.window == "clipped" and context.window is not None:
            sequence = min(sequence, Fraction(context.window))
        by_rule = {"mean": context.mean, "half": sequence / 2, "full": sequence, "none": Fraction(0)}
        return by_rule[self.attention]

    def with_head(self) -> Convention:
        """The same convention with the output head counted."""
        return self if self.head else replace(self, name=f"{self.name}+head", head=True)

    def without_head(self) -> Convention:
        """The same convention with the output head left out."""
        return replace(self, name=f"{self.name}-head", head=False) if self.head else self


CONVENTIONS = {
    row.name: row
    for row in (
        Convention("paper", True, False, False, False, "mean", "exact", "arXiv 2609.01343v3, Sec. 3.2 and App. A"),
        Convention("megatron", False, False, False, True, "half", "ignored",
                   "Megatron-LM, megatron/training/training.py, num_floating_point_operations"),
        Convention("torchtitan", True, True, True, True, "full", "clipped",
                   "torchtitan, torchtitan/models/utils.py, 6·N_active + 12·n·d·s"),
        Convention("deepseek", True, False, False, True, "half", "ignored",
                   "DeepSeek-V3 insights (arXiv 2505.09343), causal FLOPs per token"),
        Convention("6n", True, True, False, False, "none", "ignored",
                   "Kaplan et al. (arXiv 2001.08361), C = 6N, N the parameters executed for a token"),
    )
}  # fmt: skip
ALIASES = {"palm": "torchtitan"}


def convention(name: str, include_head: bool = False) -> Convention:
    """The convention of that name, with the output head if asked for."""
    row = CONVENTIONS.get(ALIASES.get(name, name))
    if row is None:
        raise BadInput(f"unknown convention {name[:60]!r}", close_names(name[:60], {*CONVENTIONS, *ALIASES}))
    return row.with_head() if include_head else row
