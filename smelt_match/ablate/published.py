"""What a paper prints for the points of a sweep, shipped as data in ``specs/ablations``."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Annotated

from pydantic import Field

from smelt_match.ablate.variants import Kind
from smelt_match.errors import BadInput
from smelt_match.files import read_text
from smelt_match.resources import data_files
from smelt_match.spec.family import shipped
from smelt_match.spec.model import Figure, ModelSpec
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import load, validate
from smelt_match.units import Printed


class PublishedTable(Record):
    """One printed table: the validation loss of each point, in nats per token, with the digits that are printed."""

    kind: Kind
    baseline: str
    section: str
    losses: Annotated[dict[str, Figure], Field(min_length=1)]

    def loss(self, variant: str) -> Decimal | None:
        """The printed loss of a point by its name, or None."""
        text = self.losses.get(variant)
        return None if text is None else Printed(text).value


class PublishedFile(Record):
    """A file of printed tables."""

    source: str
    tables: Annotated[list[PublishedTable], Field(min_length=1)]


@cache
def shipped_tables() -> dict[tuple[Kind, str], tuple[PublishedTable, str]]:
    """Every shipped table with its source, by kind and baseline."""
    found: dict[tuple[Kind, str], tuple[PublishedTable, str]] = {}
    for path in data_files("specs/ablations"):
        document = load(read_text(path, "file of printed tables"), str(path))
        file = validate(PublishedFile, document)
        for index, table in enumerate(file.tables):
            if (table.kind, table.baseline) in found:
                raise BadInput(f"{document.place(('tables', index))}: {table.kind} of {table.baseline} is given twice")
            found[table.kind, table.baseline] = (table, f"{file.source}, {table.section}")
    return found


def published_table(kind: Kind, baseline: ModelSpec) -> tuple[PublishedTable, str] | None:
    """The printed table of a sweep around a shipped baseline; a user's model of the same name has none."""
    own = shipped().get(baseline.name)
    if own is None or not isinstance(own.spec, ModelSpec) or own.spec.config() != baseline.config():
        return None
    return shipped_tables().get((kind, baseline.name))
