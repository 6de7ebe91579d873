"""What a spec costs: the context it is counted at, the control its sparsity is measured against, and both results."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from smelt_match.budget.context import DEFAULT_TOKENS, Context
from smelt_match.budget.conventions import Convention
from smelt_match.budget.deviation import sparsity
from smelt_match.budget.ledger import Budget, Ledger, ledger
from smelt_match.errors import BadInput, close_names
from smelt_match.spec.family import countable, shipped
from smelt_match.spec.model import ABOUT, ModelSpec


def context_of(spec: ModelSpec, override: Context | None = None) -> Context:
    """The context a spec is counted at: the caller's, the spec's own, or one causal document of 4,096 tokens."""
    if override is not None:
        return override
    if spec.context is not None:
        return Context.given(spec.context, f"stated by {spec.name}")
    return Context.causal(DEFAULT_TOKENS)


def control_of(spec: ModelSpec) -> ModelSpec:
    """The fully active control of Eq. 1: the one the spec names, or the spec itself with E = k, unlooped."""
    if spec.control == spec.name:
        return spec
    if spec.control is not None:
        entry = shipped().get(spec.control)
        if entry is None:
            raise BadInput(
                f"{spec.name}: control {spec.control!r} is not a shipped spec", close_names(spec.control, shipped())
            )
        return countable(entry)
    own = {*ABOUT, "name", "control"}
    loop = {"layout", "loop", "backward_visits", "loop_num_attention_heads", "loop_num_key_value_heads"}
    fields = spec.model_dump(exclude_unset=True, exclude=own | loop)
    fields |= {"num_experts": spec.experts_per_token, "name": _control_name(spec)}
    return ModelSpec.model_validate(fields)


def _control_name(spec: ModelSpec) -> str:
    if spec.num_experts:
        return f"{spec.name}-with-{spec.experts_per_token}-experts"[:100]
    return spec.name if spec.visits.is_unlooped else f"{spec.name}-unlooped"[:100]


@dataclass(frozen=True)
class Counted:
    """A spec counted under one convention and context, with its sparsity and the control it refers to."""

    ledger: Ledger
    sparsity: Fraction
    control: str

    @property
    def spec(self) -> ModelSpec:
        """What was counted."""
        return self.ledger.spec

    @property
    def budget(self) -> Budget:
        """Its budgets."""
        return self.ledger.budget


def count(
    spec: ModelSpec, convention: Convention, override: Context | None = None, control: ModelSpec | None = None
) -> Counted:
    """Count ``spec``, and its sparsity against ``control`` (default: `control_of` it) in the same context."""
    context = context_of(spec, override)
    control = control or control_of(spec)
    book = ledger(spec, convention, context)
    return Counted(book, sparsity(book.budget, ledger(control, convention, context).budget), control.name)
