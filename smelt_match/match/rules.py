"""Hardware rules: which sizes run well, as data, and the alignment score they give."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate

Quantity = Literal[
    "hidden_size",
    "num_experts",
    "expert_intermediate_size",
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
]


class Rule(Record):
    """One rule: it holds when ``quantity`` is a multiple of ``multiple_of``, or one of ``one_of``."""

    id: str
    quantity: Quantity
    multiple_of: Annotated[int, Field(ge=1)] | None = None
    one_of: list[int] | None = None
    penalty: Annotated[int, Field(ge=0, le=1000)]
    applies_when: list[str]
    reason: str
    source: str

    @model_validator(mode="after")
    def _one_predicate(self) -> Self:
        if (self.multiple_of is None) == (self.one_of is None):
            raise ValueError("give multiple_of or one_of")
        return self

    def broken(self, value: Any) -> Any:
        """Whether the rule does not hold, for an integer or elementwise for an array."""
        if self.multiple_of is not None:
            return value % self.multiple_of != 0
        assert self.one_of is not None
        holds = value == self.one_of[0]
        for allowed in self.one_of[1:]:
            holds = holds | (value == allowed)
        return holds == False  # noqa: E712  (elementwise on arrays)

    def wording(self) -> str:
        """What the rule asks for."""
        if self.multiple_of is not None:
            return f"a multiple of {self.multiple_of}"
        return "one of " + ", ".join(str(value) for value in self.one_of or ())


@cache
def _all_rules() -> tuple[Rule, ...]:
    path = next(path for path in data_files("search") if path.name == "rules.yaml")
    document = load(read_text(path, "rule file"), str(path))
    entries: list[Any] = document.value
    return tuple(validate(Rule, document, (index,), entry) for index, entry in enumerate(entries))


def rules_for(precision: str) -> tuple[Rule, ...]:
    """The rules in force at a precision."""
    return tuple(rule for rule in _all_rules() if precision in rule.applies_when or "always" in rule.applies_when)


def score(rules: tuple[Rule, ...], values: dict[str, Any]) -> Any:
    """The alignment score: the penalties of the rules that do not hold, summed; integers or arrays."""
    return sum(rule.penalty * rule.broken(values[rule.quantity]) for rule in rules) + 0 * values["hidden_size"]
