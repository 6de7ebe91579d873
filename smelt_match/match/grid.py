"""Search grids: which values a dimension may take, relative to a baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from math import ceil, floor
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.family import looks_like_path
from smelt_match.spec.model import MAX_COUNT, ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import describe, load, validate
from smelt_match.units import parse_fraction

MAX_VALUES = 2**20
MAX_VALUE = 2**24
AXES = (
    "hidden_size",
    "num_experts",
    "expert_intermediate_size",
    "head_dim",
    "num_attention_heads",
    "num_key_value_heads",
)

_MULTIPLE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?x")


def _bound(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'a whole number, or a multiple such as "0.25x", is wanted, found {describe(value)}')
    if isinstance(value, str) and not _MULTIPLE.fullmatch(value):
        raise ValueError(f'a multiple of the baseline\'s value reads like "0.25x", found {describe(value)}')
    if isinstance(value, int) and not 1 <= value <= MAX_VALUE:
        raise ValueError(f"a bound lies between 1 and {MAX_VALUE:,}, found {describe(value)}")
    return value


def _envelope(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"a factor of at least 1 is wanted, found {describe(value)}")
    try:
        factor = parse_fraction(str(value), "a factor of at least 1")
    except BadInput as error:
        raise ValueError(error.message) from None
    if not 1 <= factor <= MAX_VALUE:
        raise ValueError(f"a factor between 1 and {MAX_VALUE:,} is wanted, found {describe(value)}")
    return value


Bound = Annotated[int | str, BeforeValidator(_bound)]


class Axis(Record):
    """The values of one dimension: multiples of ``step`` from ``min`` to ``max``, or a list."""

    step: Annotated[int, Field(ge=1, le=MAX_VALUE)] | None = None
    min: Bound | None = None
    max: Bound | None = None
    values: list[Annotated[int, Field(ge=1, le=MAX_VALUE)]] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        steps = (self.step, self.min, self.max)
        if (self.values is None) == all(part is None for part in steps):
            raise ValueError("give step, min and max, or values")
        if self.values is None and any(part is None for part in steps):
            raise ValueError("step, min and max go together")
        if self.values == []:
            raise ValueError("values is empty")
        return self

    def at(self, baseline: int) -> tuple[int, ...]:
        """The values for a baseline's value of this dimension, ascending; may be empty."""
        if self.values is not None:
            return tuple(sorted(set(self.values)))
        assert self.step is not None
        low, high = (_absolute(bound, baseline) for bound in (self.min, self.max))
        first = max(1, ceil(low / self.step)) * self.step
        last = min(MAX_VALUE, floor(high / self.step) * self.step)
        if (last - first) // self.step >= MAX_VALUES:
            raise BadInput(f"more than {MAX_VALUES:,} values", "raise step, or narrow min and max")
        return tuple(range(first, last + 1, self.step))


def _absolute(bound: int | str | None, baseline: int) -> Fraction:
    assert bound is not None
    return Fraction(bound) if isinstance(bound, int) else Fraction(bound[:-1]) * baseline


class Grid(Record):
    """A named grid with its envelope and the precision whose hardware rules score alignment."""

    name: str
    notes: str = ""
    precision: str = "bf16"
    envelope: Annotated[int | float | str | None, BeforeValidator(_envelope)] = None
    hidden_size: Axis
    num_experts: Axis
    expert_intermediate_size: Axis
    head_dim: Axis
    num_attention_heads: Axis
    num_key_value_heads: Axis

    @property
    def factor(self) -> Fraction | None:
        """The envelope as an exact factor, or None."""
        return None if self.envelope is None else parse_fraction(str(self.envelope), "envelope")

    def axes(self, baseline: ModelSpec, fixed: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Absolute values of every axis; a fixed dimension has the one value. `BadInput` names an empty axis."""
        config = baseline.config()
        result = {}
        for name in AXES:
            try:
                values = (fixed[name],) if name in fixed else getattr(self, name).at(config[name])
            except BadInput as error:
                raise BadInput(f"grid {self.name!r}: {name}: {error.message}", error.hint) from None
            if name not in ("hidden_size", "expert_intermediate_size", "head_dim"):
                values = tuple(value for value in values if value <= MAX_COUNT)
            if name == "num_experts":
                values = tuple(value for value in values if value >= baseline.experts_per_token)
            if name == "head_dim":
                values = tuple(value for value in values if value % 2 == 0)
            if not values:
                raise BadInput(
                    f"grid {self.name!r}: no point: {name} has no value for {baseline.name}",
                    "widen min and max, or lower step",
                )
            result[name] = values
        return result


@cache
def shipped_grids() -> dict[str, Grid]:
    """The grids that come with the package, by name."""
    path = next(path for path in data_files("search") if path.name == "grids.yaml")
    document = load(read_text(path, "grid file"), str(path))
    grids: list[Any] = document.value
    return {entry["name"]: validate(Grid, document, (index,), entry) for index, entry in enumerate(grids)}


def find_grid(text: str) -> Grid:
    """A grid by name, or from a YAML file."""
    if text in shipped_grids():
        return shipped_grids()[text]
    if looks_like_path(text) or Path(text[:255]).is_file():
        return validate(Grid, load(read_text(Path(text), "grid file"), text))
    raise BadInput(f"unknown grid {text[:80]!r}", close_names(text[:80], shipped_grids()))
