"""The Pareto front is exact, and the advisor's floors are those of the solver."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from smelt_match.errors import BadInput
from smelt_match.match.front import pareto_front
from smelt_match.match.grid import Grid, find_grid
from smelt_match.match.layouts import layout_floors, middle_layout
from smelt_match.match.order import alignment, shape_steps
from smelt_match.match.problem import Points, Problem, Question
from smelt_match.match.rules import rules_for
from smelt_match.match.solver import nearest_level, solve

Ask = Callable[..., Question]


@pytest.mark.parametrize(("name", "heads"), [("200m_s95", "kept"), ("nano_s85", "free-kv"), ("100m_s0", "free")])
def test_the_front_holds_exactly_the_points_that_no_other_beats(ask: Ask, name: str, heads: str) -> None:
    problem = Problem(ask(name, "mid50x2", heads=heads), "uniform")
    found = nearest_level(problem)
    assert found is not None
    points = found[0].points(Fraction(8, 100))
    values = problem.values(points)
    shape, score = shape_steps(problem, points), alignment(problem, points)
    measures = {
        (max(abs(problem.relative(b, int(values[b][i]))) for b in ("flops", "params")), int(shape[i]), int(score[i]))
        for i in range(len(points))
    }
    undominated = {
        one for one in measures
        if not any(two != one and all(a <= b for a, b in zip(two, one, strict=True)) for two in measures)
    }  # fmt: skip
    front = pareto_front(problem)
    assert {(p.worst, p.shape, p.alignment) for p in front} == undominated
    assert len(front) == len(undominated)
    assert min(p.worst for p in front) == solve(problem).minimax  # type: ignore[union-attr]


def test_resonant_layouts_come_first_in_the_advisor(ask: Ask) -> None:
    rows = layout_floors(ask("200m_s95", "none"), [12], 2)
    assert [(row.layout.text, row.uniform, row.head_dim) for row in rows[:2]] == [
        ("mid33x2", 0, 96),
        ("full x2", 0, 64),
    ]
    assert len(rows) == 12
    assert all(row.split == 0 for row in rows)
    assert [abs(row.uniform) for row in rows] == sorted(abs(row.uniform) for row in rows)


@pytest.mark.parametrize("span", range(1, 13))
def test_a_middle_layout_has_its_span_whatever_its_name(span: int) -> None:
    layout = middle_layout(12, span, 3)
    before = (12 - span) // 2
    assert layout.loop == tuple(range(before, before + span))


def test_the_advisor_s_floor_is_the_solver_s(ask: Ask) -> None:
    for row in layout_floors(ask("200m_s95", "none"), [10, 12], 3)[:12]:
        question = ask("200m_s95", row.layout.text, depth=row.layout.num_layers)
        solution = solve(Problem(question, "uniform"))
        assert solution is not None
        assert solution.floor == row.uniform
        assert solution.ranked[0][3] == row.head_dim


def test_alignment_adds_up_the_penalties_of_broken_rules(ask: Ask) -> None:
    problem = Problem(ask("200m_s95", "mid50x2"), "uniform")
    good, worse = (1024, 64, 320, 64, 10, 2), (1032, 65, 321, 88, 10, 1)
    scores = [int(score) for score in alignment(problem, Points.of(good, worse))]
    broken = {"tile-64-hidden", "tile-64-expert", "gemm-8-expert", "head-kernel", "head-flex", "experts-ep8"}
    expected = sum(rule.penalty for rule in rules_for("bf16") if rule.id in broken)
    assert scores == [0, expected]


def test_every_rule_names_its_reason_and_source() -> None:
    for precision in ("bf16", "fp8"):
        for rule in rules_for(precision):
            assert rule.reason
            assert rule.source.startswith("https://")
    assert rules_for("cpu") == ()


def test_grid_bounds_are_relative_to_the_baseline(ask: Ask) -> None:
    base = ask("200m_s95", "none").baseline
    axes = find_grid("bf16").axes(base, {})
    assert (axes["hidden_size"][0], axes["hidden_size"][-1]) == (320, 2560)
    assert axes["num_attention_heads"] == tuple(range(1, 41))
    pinned = find_grid("bf16").axes(base, {"hidden_size": 1001})
    assert pinned["hidden_size"] == (1001,)


def test_an_empty_axis_is_named(ask: Ask) -> None:
    data = find_grid("bf16").model_dump(exclude_none=True) | {"head_dim": {"values": [3, 5]}, "name": "odd"}
    with pytest.raises(BadInput, match=r"grid 'odd': no point: head_dim"):
        Problem(ask("200m_s95", "mid50x2"), "uniform").question.grid.model_validate(data).axes(
            ask("200m_s95", "none").baseline, {}
        )
    assert isinstance(find_grid("raw"), Grid)
