"""Contrasts over lengths and in-context examples as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.report.laws import fixed_point, significant
from smelt_match.scaling.contrasts import Shape, Shots

FAMILY_WORDS = {
    "target": "target over reference",
    "experts": "more experts, within the reference",
    "parameters": "more parameters, within the reference",
}
SHOTS = (
    Column("shots", "k", significant(6)),
    Column("tasks", "tasks"),
    Column("reference", "reference", fixed_point(4)),
    Column("target", "target", fixed_point(4)),
    Column("gap", "gap", fixed_point(4)),
    Column("over_first", "gap over first k's", fixed_point(4)),
    Column("note", "note", left=True),
)


def length_columns(buckets: Sequence[float]) -> list[Column]:
    """A column a bucket."""
    return [
        Column("family", "contrast", left=True),
        *(Column(f"shape_{bucket:g}", f"≤{bucket:g}", fixed_point(2)) for bucket in buckets),
        Column("tilt", "long / short", fixed_point(2)),
        Column("contrasts", "pairs"),
        Column("left_out", "left out"),
    ]


def length_rows(buckets: Sequence[float], shapes: Sequence[Shape]) -> list[Row]:
    """A row a family."""
    return [
        {
            "family": FAMILY_WORDS[one.family],
            **{f"shape_{bucket:g}": float(value) for bucket, value in zip(buckets, one.shape, strict=True)},
            "tilt": one.tilt, "contrasts": one.contrasts, "left_out": one.left_out,
        }
        for one in shapes
    ]  # fmt: skip


LENGTH_NOTE = (
    "improvement of each length bucket over the contrast's mean improvement, averaged over pairs; long / short: mean "
    "of the longer half of the buckets over the shorter half\n"
    "left out: pairs that do not improve on average"
)


def length_document(buckets: Sequence[float], shapes: Sequence[Shape]) -> dict[str, Any]:
    """The document of `contrast length`."""
    return {
        "schema_version": SCHEMA_VERSION, "upper_bounds_tokens": list(buckets),
        "contrasts": [
            {
                "family": one.family, "shape": one.shape.tolist(), "improvement_nats": one.improvement.tolist(),
                "tilt": one.tilt, "pairs": one.contrasts, "left_out": one.left_out,
            }
            for one in shapes
        ],
    }  # fmt: skip


def shot_rows(found: Sequence[Shots]) -> list[Row]:
    """A row for each number of examples."""
    first = next((one.gap for one in found if one.common), None)
    return [
        {
            "shots": one.shots, "tasks": one.tasks, "reference": one.reference, "target": one.target, "gap": one.gap,
            "over_first": one.gap - first if one.common and first is not None else None,
            "note": "" if one.common else "fewer tasks: not comparable with the other rows",
        }
        for one in found
    ]  # fmt: skip


def shot_document(found: Sequence[Shots], names: tuple[str, str]) -> dict[str, Any]:
    """The document of `contrast shots`."""
    return {
        "schema_version": SCHEMA_VERSION, "target": names[0], "reference": names[1],
        "shots": [{key: value for key, value in row.items() if key != "note"} | {"all_tasks": one.common}
                  for row, one in zip(shot_rows(found), found, strict=True)],
    }  # fmt: skip
