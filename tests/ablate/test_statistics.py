"""Intervals, tests and detectable differences against textbook and published numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.ablate.statistics import detectable, estimate, holm, paired

# Student's own data (Biometrika 6, 1908), additional hours of sleep by two drugs.
# t = 4.0621, p = 0.00283 (R's `sleep`).
DRUG_1 = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
DRUG_2 = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def test_students_sleep_data() -> None:
    found = paired(DRUG_1, DRUG_2)
    assert found.estimate.mean == pytest.approx(-1.58)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    half = found.estimate.half
    assert half is not None
    assert (found.estimate.mean - half, found.estimate.mean + half) == pytest.approx((-2.459886, -0.7001142), abs=1e-6)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    assert estimate([2.0]).half is None
    found = paired([2.0], [1.5])
    assert (found.estimate.mean, found.estimate.half, found.p, found.detectable) == (0.5, None, None, None)


def test_equal_differences_leave_nothing_to_test() -> None:
    found = paired([1.5, 2.5], [1.0, 2.0])
    assert (found.estimate.mean, found.estimate.half, found.p, found.detectable) == (0.5, 0.0, None, 0.0)


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_detectable_differences_are_cohens(effect: float, pairs: int) -> None:
    """Pairs for 80 % power at 5 %, two-sided, as G*Power gives them: the first number that reaches the effect."""
    assert detectable(1.0, pairs) <= effect < detectable(1.0, pairs - 1)


@given(st.integers(2, 500))
def test_more_seeds_resolve_smaller_differences(n: int) -> None:
    assert 0 < detectable(1.0, n + 1) < detectable(1.0, n) < math.inf


def test_holms_own_example() -> None:
    """Holm (1979): the least p times the number of tests, the next times one less, never falling."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=20))
def test_adjusted_values_are_never_smaller_and_keep_their_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(0 <= p <= a <= 1 for p, a in zip(ps, adjusted, strict=True))
    assert [a for _, a in sorted(zip(ps, adjusted, strict=True))] == sorted(adjusted)
