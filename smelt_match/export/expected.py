"""Published figures against our counts, digit by digit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from smelt_match.budget.active import active_counts
from smelt_match.budget.conventions import convention
from smelt_match.budget.count import count
from smelt_match.spec.family import shipped
from smelt_match.spec.model import Head, ModelSpec


@dataclass(frozen=True)
class Comparison:
    """One published figure; ``agrees`` is None where it cannot be checked."""

    name: str
    printed: str
    counted: Fraction | None
    agrees: bool | None

    @property
    def verdict(self) -> str:
        """The comparison in words."""
        if self.counted is None:
            return "not checked"
        whole = self.counted.denominator == 1
        ours = f"{int(self.counted):,}" if whole else f"{float(self.counted):.6g}"
        return f"counted {ours}: {'agrees' if self.agrees else 'DISAGREES'}"


def compare(spec: Head) -> list[Comparison]:
    """Every figure that a spec's source prints, against the count under the paper's convention."""
    known = _counted(spec) if isinstance(spec, ModelSpec) else {}
    return [
        Comparison(name, figure.text, known.get(name), figure.agrees(known[name]) if name in known else None)
        for name, figure in spec.expected.items()
    ]


def _counted(spec: ModelSpec) -> dict[str, Fraction]:
    rule = convention("paper")
    mine = count(spec, rule)
    found = {
        "params_active": Fraction(mine.budget.active),
        "params_total": Fraction(mine.budget.params),
        "sparsity": mine.sparsity,
        "flops_train_per_token": mine.budget.flops,
        "kv_elements_per_token": Fraction(mine.budget.kv),
    }
    actives = active_counts(spec)
    if actives.total is not None and actives.with_embeddings is not None:
        ends = actives.with_embeddings - actives.one_traversal
        found["params_active_with_embeddings"] = Fraction(actives.with_embeddings)
        found["params_executed_with_embeddings"] = Fraction(actives.executed + ends)
        found["params_total_with_embeddings"] = Fraction(actives.total)
    baseline = shipped().get(spec.matches) if spec.matches else None
    if baseline is not None and isinstance(baseline.spec, ModelSpec):
        theirs = count(baseline.spec, rule, mine.ledger.context).budget
        found["flops_ratio"] = mine.budget.flops / theirs.flops
        found["kv_ratio"] = Fraction(mine.budget.kv, theirs.kv)
    return found
