"""Figures that sources print for real models, and the few config fields that they follow from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.huggingface.reader import read_config
from smelt_match.spec.model import Figure, ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate

Quantity = Literal[
    "params_total",
    "params_without_embeddings",
    "params_active",
    "params_active_without_lookup",
    "params_executed",
    "kv_bytes_per_token",
    "flops_train_per_token",
]


class PublishedFigure(Record):
    """One figure of a real model.

    Attributes:
        value: With all the digits that the source prints.
        basis: ``published`` by the source, ``built`` by the class that the source names, or ``arithmetic`` on shapes
            by the source's formula.
        convention: For FLOPs, what bills them.
        tokens: For FLOPs, the length of the causal document.
        beyond: What the source counts and no parameter of ours is, such as buffers; `why` says what that is.
    """

    quantity: Quantity
    value: Figure
    basis: Literal["published", "built", "arithmetic"] = "published"
    source: str
    convention: str | None = None
    tokens: Annotated[int, Field(ge=1)] = 4096
    beyond: Annotated[int, Field(ge=0)] = 0
    why: str = ""


class PublishedModel(Record):
    """A real model: config fields as on the Hub, those that a budget depends on, and its figures."""

    name: str
    config: dict[str, Any]
    layout: str = "none"
    figures: Annotated[list[PublishedFigure], Field(min_length=1)]


class PublishedFile(Record):
    """A file of them."""

    models: list[PublishedModel]


@dataclass(frozen=True)
class RealModel:
    """A real model as a spec, with its figures."""

    spec: ModelSpec
    figures: tuple[PublishedFigure, ...]


def real_models() -> list[RealModel]:
    """Every real model that comes with the package.

    Raises:
        BadInput: The package's own data is broken.
    """
    found = []
    for path in data_files("specs/published"):
        for model in validate(PublishedFile, load(read_text(path), str(path))).models:
            spec = read_config(Path(f"{model.name}.json"), model.config).spec
            if model.layout != "none":
                spec = spec.changed(layout=model.layout)
            found.append(RealModel(spec, tuple(model.figures)))
    return found
