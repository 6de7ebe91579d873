"""The layouts advisor: which loops can keep the KV cache, before anything is solved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from smelt_match.errors import BadInput
from smelt_match.match.problem import Problem, Question, forms_of, split_ways
from smelt_match.match.solver import kv_deviations, kv_floor
from smelt_match.spec.grammar import parse_layout, placed_size
from smelt_match.spec.layout import MAX_VISITS, Layout


@dataclass(frozen=True)
class LayoutFloor:
    """One layout with its KV floors.

    Attributes:
        layout: The layout.
        span: Looped layers.
        count: Visits of each.
        uniform: The signed KV floor with one head geometry everywhere.
        width: The K = n_kv·d that reaches it.
        head_dim: The smallest head size on the grid that gives that K.
        split: The signed KV floor with split heads, or None.
        split_reason: Why there are no split heads, or empty.
    """

    layout: Layout
    span: int
    count: int
    uniform: Fraction
    width: int
    head_dim: int
    split: Fraction | None
    split_reason: str

    @property
    def resonant(self) -> bool:
        """Whether one geometry keeps the KV cache exactly."""
        return self.uniform == 0


def middle_layout(depth: int, span: int, count: int) -> Layout:
    """The middle ``span`` of ``depth`` layers, ``count`` times, under its shortest name."""
    if span == depth:
        return parse_layout(f"full x{count}", depth)
    share = (100 * span + depth // 2) // depth
    if placed_size(share, depth) == span:
        return parse_layout(f"mid{share}x{count}", depth)
    before = (depth - span) // 2
    return parse_layout(f"{before}-{span}-{depth - before - span}x{count}", depth)


def layout_floors(question: Question, depths: Iterable[int], max_count: int) -> list[LayoutFloor]:
    """Every (span, count, depth) with its KV floors, the closest first.

    Args:
        question: Its layout is replaced; baseline, grid and head rule are used.
        depths: Physical depths.
        max_count: Largest number of visits, from 2.
    """
    forms_of(question)  # what no layout can solve is an error; what one layout cannot is left out
    found = [_floor(replace(question, layout=layout), span, count) for layout, span, count in _all(depths, max_count)]
    return sorted(
        (row for row in found if row is not None),
        key=lambda row: (abs(row.uniform), row.layout.num_layers, row.count, row.span),
    )


def _all(depths: Iterable[int], max_count: int) -> Iterator[tuple[Layout, int, int]]:
    for depth in depths:
        for count in range(2, max_count + 1):
            for span in range(1, depth + 1):
                if depth + (count - 1) * span <= MAX_VISITS:
                    yield middle_layout(depth, span, count), span, count


def _floor(question: Question, span: int, count: int) -> LayoutFloor | None:
    try:
        problem = Problem(question, "uniform")
        uniform = kv_floor(problem)
    except BadInput:  # one-sided and no width lies below, or a dense layer lies in the loop
        return None
    width = min(K for K, value in kv_deviations(problem).items() if value == uniform)
    head_dim = min(d for d, _, n_kv in problem.geometries if d * n_kv == width)
    ways, reason = split_ways(question)
    split = kv_floor(Problem(question, "split")) if ways else None
    return LayoutFloor(question.layout, span, count, uniform, width, head_dim, split, reason)
