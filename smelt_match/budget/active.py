"""Three numbers that are all called active parameters, told apart."""

from __future__ import annotations

from dataclasses import dataclass

from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.spec.model import ModelSpec


@dataclass(frozen=True)
class ActiveCounts:
    """Parameters that a token uses, by three meanings, and all that are stored.

    Attributes:
        one_traversal: Each block once, k experts, without embedding and output head: the paper's.
        executed: The same at every visit of every block.
        with_embeddings: One traversal with embedding and output head, tied weights once: what most model cards print.
            None where the vocabulary is unknown.
        total: Stored parameters with embedding and output head, or None.
    """

    one_traversal: int
    executed: int
    with_embeddings: int | None
    total: int | None

    def as_json(self) -> dict[str, int | None]:
        """Under names that say which meaning each has."""
        return {
            "params_active_one_traversal": self.one_traversal,
            "params_executed_every_visit": self.executed,
            "params_active_with_embeddings": self.with_embeddings,
            "params_total_with_embeddings": self.total,
        }

    def lines(self) -> list[str]:
        """In words, a line each."""
        lines = [
            f"active by one traversal, without embeddings (the paper's): {self.one_traversal:,}",
            f"executed at every visit, without embeddings: {self.executed:,}",
        ]
        if self.with_embeddings is None:
            return [*lines, "active and total with embeddings: unknown, since no vocab_size is stated"]
        return [
            *lines,
            f"active with embedding and output head (as most model cards print it): {self.with_embeddings:,}",
            f"total with embedding and output head: {self.total:,}",
        ]


def active_counts(spec: ModelSpec) -> ActiveCounts:
    """The counts of a spec; none depends on a context."""
    context = Context.causal(1)
    bare = ledger(spec, convention("paper"), context).totals
    if spec.vocab_size is None:
        return ActiveCounts(bare.active, bare.executed, None, None)
    total = ledger(spec, convention("torchtitan"), context).totals.stored
    return ActiveCounts(bare.active, bare.executed, bare.active + total - bare.stored, total)
