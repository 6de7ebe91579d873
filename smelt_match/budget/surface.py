"""Loss as a function of cost: Eq. 2 with its coefficients, and where it was fitted.

Symbols: F training FLOPs per token, S compute-equivalent sparsity (Eq. 1), D training tokens, C = F·D training FLOPs,
L validation loss in nats. Source: arXiv 2609.01343v3, Sec. 4.2 and 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from smelt_match.budget.context import Context
from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.model import Rational
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import Document, load, validate
from smelt_match.units import parse_fraction

MOST_NATS = 1e3
# What a file may say; numbers can hold all that follows from it.
PLAUSIBLE = {
    "E": (0, MOST_NATS),
    "A": (1e-100, 1e100),
    "K": (1e-100, 1e100),
    "a": (1e-3, 10),
    "b": (-10, 10),
    "c": (1e-3, 10),
}
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(lt=1, allow_inf_nan=False)]
Amounts = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class Surface(Record):
    """L(F, S, D) = E + A·(1 − S)^b / F^a + K / D^c, with the ranges of the end points it was fitted on (Eq. 2)."""

    name: str
    source: str = ""
    E: Annotated[float, Field(ge=0, allow_inf_nan=False, description="irreducible loss, nats")]
    A: Annotated[Positive, Field(description="of the capacity term")]
    K: Annotated[Positive, Field(description="of the data term")]
    a: Annotated[Positive, Field(description="exponent of F")]
    b: Annotated[float, Field(allow_inf_nan=False, description="exponent of 1 − S")]
    c: Annotated[Positive, Field(description="exponent of D")]
    rmse: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(None, description="of the fit, nats")
    half_units: dict[Literal["E", "A", "K", "a", "b", "c"], Positive] = Field(
        default_factory=dict, description="half a unit of the last printed digit of a coefficient, where it is rounded"
    )
    mean_attended_context: Rational | None = Field(None, description="c that its F was counted at")
    flops_per_token: Amounts | None = Field(None, description="least and greatest F of the fit")
    sparsity: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = Field(
        None, description="least and greatest S of the fit"
    )
    tokens: Amounts | None = Field(None, description="least and greatest D of the fit")
    flops: Amounts | None = Field(None, description="least and greatest C of the fit")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        faults = [
            f"{name}: the least value comes first, found {ends}"
            for name in ("flops_per_token", "sparsity", "tokens", "flops")
            if (ends := getattr(self, name)) is not None and not ends[0] <= ends[1]
        ]
        faults += [
            f"half_units: {name}: {half:g} is not less than the coefficient, {getattr(self, name):g}"
            for name, half in self.half_units.items()
            if not half < abs(getattr(self, name))
        ]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @property
    def mean_context(self) -> Fraction | None:
        """The mean attended context that its F was counted at, or None where it is not stated."""
        if self.mean_attended_context is None:
            return None
        return parse_fraction(self.mean_attended_context, "mean_attended_context")

    @property
    def context(self) -> Context | None:
        """The same as a context to count models in."""
        mean = self.mean_context
        return None if mean is None else Context.given(mean, f"stated by surface {self.name!r}")

    def log_capacity(self, F: float, active: float) -> float:
        """The natural log of the capacity-limited term, A·(1 − S)^b / F^a, at 1 − S = ``active``."""
        return math.log(self.A) + self.b * math.log(active) - self.a * math.log(F)

    def capacity(self, F: float, S: float) -> float:
        """The capacity-limited term in nats."""
        return math.exp(self.log_capacity(F, 1 - S))

    def loss(self, F: float, S: float, D: float) -> float:
        """Eq. 2 in nats."""
        return self.E + self.capacity(F, S) + math.exp(math.log(self.K) - self.c * math.log(D))


class SurfaceFile(Record):
    """A file of surfaces."""

    surfaces: Annotated[list[Surface], Field(min_length=1)]


def read_surfaces(path: Path) -> dict[str, Surface]:
    """The surfaces of a YAML file by name; `BadInput` lists every fault."""
    document = load(read_text(path, "surface file"), str(path))
    found: dict[str, Surface] = {}
    surfaces = validate(SurfaceFile, document).surfaces
    faults = [fault for index, surface in enumerate(surfaces) for fault in _implausible(document, index, surface)]
    if faults:
        raise BadInput("\n".join(faults))
    for index, surface in enumerate(surfaces):
        if surface.name in found:
            raise BadInput(f"{document.place(('surfaces', index, 'name'))}: {surface.name!r} names two surfaces")
        found[surface.name] = surface
    return found


def _implausible(document: Document, index: int, surface: Surface) -> Iterator[str]:
    """The coefficients of a surface from which no number that can be held would follow."""
    for key, (low, high) in PLAUSIBLE.items():
        value = getattr(surface, key)
        if not low <= value <= high:
            place = document.place(("surfaces", index, key))
            yield f"{place}: {surface.name}: {key} is {value:g}, from {low:g} to {high:g} is plausible"


@cache
def shipped_surfaces() -> dict[str, Surface]:
    """The paper's two surfaces, ``baseline`` and ``smelt``."""
    (path,) = (path for path in data_files("specs/surfaces") if path.name == "smelt.yaml")
    return read_surfaces(path)


def choose_surface(text: str) -> tuple[Surface, list[Surface]]:
    """The surface that ``NAME``, ``FILE`` or ``FILE:NAME`` stands for, and the others of its file.

    Raises:
        BadInput: No such surface, or a file of several without the name of one.
    """
    surfaces, name = shipped_surfaces(), text
    if text not in surfaces:
        place, _, name = (text, "", "") if Path(text[:255]).is_file() else text.rpartition(":")
        if not place and not Path(text[:255]).suffix:
            raise BadInput(f"--surface: unknown surface {text[:80]!r}", close_names(text[:80], surfaces))
        surfaces = read_surfaces(Path(place or text))
        if not name and len(surfaces) == 1:
            (name,) = surfaces
    if name not in surfaces:
        what = f"{name[:80]!r} is not a surface of it" if name else f"holds {len(surfaces)} surfaces"
        raise BadInput(f"--surface {text[:80]}: {what}", f"write FILE:NAME; {close_names(name[:80], surfaces)}")
    return surfaces[name], [other for key, other in surfaces.items() if key != name]
