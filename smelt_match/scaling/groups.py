"""A file that sorts columns into categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from smelt_match.errors import BadInput, close_names
from smelt_match.files import read_text
from smelt_match.scaling.design import Array
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate

Numbered = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]


class CategoryFile(Record):
    """``categories``: names of columns by category, each with a number where the command uses one."""

    categories: Annotated[dict[str, list[str] | Numbered], Field(min_length=1)]


def read_categories(path: Path, known: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Columns and their numbers by category; `BadInput` lists columns that a table does not have."""
    document = load(read_text(path, "category file"), str(path))
    found: dict[str, dict[str, float | None]] = {}
    faults = []
    for name, members in validate(CategoryFile, document).categories.items():
        place = document.place(("categories", name))
        found[name] = dict(members) if isinstance(members, dict) else dict.fromkeys(members)
        if not found[name]:
            faults.append(f"{place}: has no columns")
        faults += [f"{place}: no column {column!r}" for column in found[name] if column not in known]
    if faults:
        missing = faults[0].rpartition(" ")[2].strip("'")
        raise BadInput("\n".join(faults), close_names(missing, known))
    return found


def weighted_mean(columns: Mapping[str, Array], members: Mapping[str, float | None]) -> Array:
    """The mean of some columns, weighted by their numbers (tokens) where they have them."""
    weights = np.array([1.0 if number is None else number for number in members.values()])
    if not weights.sum() > 0:
        raise BadInput("the weights of a category are all 0")
    return np.asarray(np.einsum("c,cn->n", weights, np.array([columns[name] for name in members])) / weights.sum())
