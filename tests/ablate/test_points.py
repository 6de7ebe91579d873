"""Every point is matched anew, and what is beyond the paper's own tolerances says so."""

from __future__ import annotations

from fractions import Fraction

import pytest

from smelt_match.ablate.variants import KINDS, Kind
from smelt_match.errors import BadInput
from smelt_match.match.answer import answer
from smelt_match.match.grid import find_grid
from smelt_match.match.problem import Question
from tests.ablate.conftest import points_of


@pytest.mark.parametrize("kind", KINDS)
def test_each_point_is_the_solvers_first_match_of_its_layout(kind: Kind) -> None:
    for point in points_of(kind):
        if point.is_reference:
            assert point.best.spec == point.baseline.spec
            continue
        book = point.baseline.ledger
        question = Question(
            point.baseline.spec, point.variant.layout, book.convention, book.context, find_grid("nano"), heads="kept"
        )
        solved = answer(question).policies[0]
        assert solved.solution is not None
        expected = solved.solution.problem.spec_at(solved.solution.ranked[0], point.best.spec.name)
        assert point.best.spec.config() == expected.config()


def test_unlooped_models_of_other_depths_are_matched_to_the_reference_too() -> None:
    found = {point.variant.name: point for point in points_of("depth", "200m_s85")}
    for name in ("baseline-9", "baseline-15", "baseline-18"):
        point = found[name]
        assert not point.variant.looped
        assert not point.is_reference
        assert abs(point.best.off.flops) < Fraction(1, 100)
        assert abs(point.best.off.params) < Fraction(1, 100)


def test_points_beyond_the_papers_tolerances_are_kept_with_the_grid_that_mends_them() -> None:
    found = {point.variant.name: point for point in points_of("count", "200m_s85")}
    assert found["count-4"].beyond == ("kv",)
    assert found["count-4"].best.off.kv == Fraction(-1, 16)
    assert found["count-4"].mend == "--grid head4 mends it"
    assert found["count-2"].mend == ""
    mended = {point.variant.name: point for point in points_of("count", "200m_s85", grid="head4")}
    assert mended["count-4"].beyond == ()


def test_a_grid_that_is_the_finest_already_says_so() -> None:
    point = points_of("count")[-1]
    assert point.mend == "no shipped grid mends it; 'nano' has the finest head sizes already"


def test_split_heads_exist_along_the_span_and_keep_the_cache() -> None:
    for point in points_of("span", "200m_s95", heads="split")[1:]:
        assert point.best.off.kv == point.best.off.attention == 0


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("count", ["count-3: split heads are unavailable: 3 visits do not divide the 4 query heads", "count-4: split"]),
        ("depth", ["baseline-6: split heads are unavailable: the depth is 6, the baseline's 8", "looped-10: split"]),
    ],
)
def test_split_heads_are_refused_with_every_point_that_has_none(kind: Kind, told: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        points_of(kind, heads="split")
    for text in told:
        assert text in caught.value.message
    assert "--heads uniform" in caught.value.hint


def test_the_first_matches_of_a_point_are_distinct_and_in_order() -> None:
    point = points_of("span", text="6", top=4)[1]
    assert [candidate.rank for candidate in point.candidates] == [1, 2, 3, 4]
    assert len({str(candidate.spec.config()) for candidate in point.candidates}) == 4


def test_a_looped_baseline_is_refused() -> None:
    with pytest.raises(BadInput, match="is itself looped"):
        points_of("span", "200m_s85_smelt")
