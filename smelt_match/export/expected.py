"""Published figures against our counts, digit by digit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

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
    baseline = shipped().get(spec.matches) if spec.matches else None
    if baseline is not None and isinstance(baseline.spec, ModelSpec):
        theirs = count(baseline.spec, rule, mine.ledger.context).budget
        found["flops_ratio"] = mine.budget.flops / theirs.flops
        found["kv_ratio"] = Fraction(mine.budget.kv, theirs.kv)
    return found
