"""The axes of the paper's three ablations: which loops a sweep compares, before anything is solved.

Source: arXiv 2609.01343v3, Sec. 3.3 (span), 3.4 (depth), 3.5 (count).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from smelt_match.errors import BadInput
from smelt_match.match.layouts import middle_layout
from smelt_match.spec.grammar import parse_layout, placed_size
from smelt_match.spec.layout import MAX_LAYERS, Layout

Kind = Literal["span", "depth", "count"]
KINDS: tuple[Kind, ...] = ("span", "depth", "count")
PASSES = 2
MAX_POINTS = 64
MAX_PASSES = 64
# Depths of the paper's Sec. 3.4 at L = 12, as shares of L: physical for the baseline, executed for the looped model.
BASELINE_DEPTHS = (Fraction(3, 4), Fraction(1), Fraction(5, 4), Fraction(3, 2))
EXECUTED_DEPTHS = (Fraction(1), Fraction(5, 4), Fraction(3, 2), Fraction(7, 4))
WANTED = {
    "span": "looped layers such as 0,2,4 or 0-12",
    "count": "visits of the middle half such as 1-4",
    "depth": "physical depths such as 9,12,15 for unlooped models and 8x2,10x2 for looped ones",
}


@dataclass(frozen=True)
class Variant:
    """One place on the axis of a sweep.

    Attributes:
        name: Its name in tables and folders, such as ``span-6``, ``count-3``, ``baseline-9`` or ``looped-8``.
        value: Looped layers, visits, or physical depth.
        layout: The visits of its blocks.
    """

    name: str
    value: int
    layout: Layout

    @property
    def looped(self) -> bool:
        """Whether any block is visited twice."""
        return not self.layout.is_unlooped


def variants(kind: Kind, num_layers: int, text: str | None = None) -> list[Variant]:
    """The axis of a sweep around a reference of ``num_layers``; ``text`` names other points than the paper's.

    Returns:
        The variants in order; the reference, which is the unlooped model of ``num_layers``, is always among them.

    Raises:
        BadInput: The text cannot be read, or a point does not exist at this depth.
    """
    chosen = _read(kind, text) if text is not None else _papers(kind, num_layers)
    reference = _reference(kind, num_layers)
    found = list(dict.fromkeys(_variant(kind, value, looped, num_layers) for value, looped in chosen))
    if reference not in found:
        found.insert(0, reference)
    if len(found) == 1:
        raise BadInput(f"--points {text!r}: only the baseline itself; there is nothing to compare", WANTED[kind])
    return found


def _papers(kind: Kind, L: int) -> list[tuple[int, bool]]:
    if kind == "span":
        return [(m, m > 0) for m in sorted({*range(0, L + 1, 2), L})]
    if kind == "count":
        return [(r, r > 1) for r in range(1, 5)]
    physical = [(max(1, round(L * share)), False) for share in BASELINE_DEPTHS]
    executed = [L * share for share in EXECUTED_DEPTHS]  # a half looped twice runs 3/2 of its layers; even ones halve
    return physical + [(max(2, 2 * round(depth * Fraction(2, 3) / 2)), True) for depth in executed]


def _reference(kind: Kind, L: int) -> Variant:
    name, value = {"span": ("span-0", 0), "count": ("count-1", 1), "depth": (f"baseline-{L}", L)}[kind]
    return Variant(name, value, parse_layout("none", L))


def _variant(kind: Kind, value: int, looped: bool, L: int) -> Variant:
    if kind == "span":
        if value > L:
            raise BadInput(f"--points: {value} looped layers, but the baseline has {L}", WANTED[kind])
        layout = middle_layout(L, value, PASSES) if value else parse_layout("none", L)
        return Variant(f"span-{value}", value, layout)
    if kind == "count":
        if not 1 <= value <= MAX_PASSES:
            raise BadInput(f"--points: {value} visits; 1 to {MAX_PASSES} are possible", WANTED[kind])
        return Variant(f"count-{value}", value, _half(L, value) if value > 1 else parse_layout("none", L))
    if not 1 <= value <= min(MAX_LAYERS, 512):
        raise BadInput(f"--points: {value} layers; 1 to 512 are possible", WANTED[kind])
    if looped:
        return Variant(f"looped-{value}", value, _half(value, PASSES))
    return Variant(f"baseline-{value}", value, parse_layout("none", value))


def _half(depth: int, passes: int) -> Layout:
    return middle_layout(depth, placed_size(50, depth), passes)


def _read(kind: Kind, text: str) -> list[tuple[int, bool]]:
    """``0,2,4`` or ``1-4`` as values; ``8x2`` is a looped depth. Values once each, in the order given."""
    found: dict[tuple[int, bool], None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4})|(x2))?\s*", part, re.ASCII)
        if match is None or (match[3] and kind != "depth"):
            raise BadInput(f"--points {text[:60]!r}: {part.strip()[:40]!r} is not understood", f"write {WANTED[kind]}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInput(f"--points {text[:60]!r}: {first} is more than {last}")
        if last - first >= MAX_POINTS:
            raise BadInput(f"--points {text[:60]!r}: more than {MAX_POINTS} points")
        looped = bool(match[3]) or (kind == "span" and first > 0) or (kind == "count" and first > 1)
        found.update(dict.fromkeys((value, looped) for value in range(first, last + 1)))
    if len(found) > MAX_POINTS:
        raise BadInput(f"--points {text[:60]!r}: more than {MAX_POINTS} points")
    return list(found)
