"""Plans: nearest models, and seeds that tell a difference."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from smelt_match.budget.surface import shipped_surfaces
from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.frontier import Coefficients
from smelt_match.scaling.planning import Candidate, choices, power, seeds_needed


def test_textbook_sample_sizes() -> None:
    """Two-sided t test, level 0.05, power 0.8: 17, 26, 64 and 394 a side for d = 1, 0.8, 0.5 and 0.2 (Cohen 1988)."""
    assert [seeds_needed(d, 1.0) for d in (1.0, 0.8, 0.5, 0.2)] == [17, 26, 64, 394]


@given(ratio=st.floats(0.05, 5), chance=st.sampled_from([0.5, 0.8, 0.95]), level=st.sampled_from([0.01, 0.05]))
def test_fewest_seeds_reach_the_power_and_one_less_does_not(ratio: float, chance: float, level: float) -> None:
    seeds = seeds_needed(ratio, 1.0, chance, level)
    assert power(ratio, 1.0, seeds, level) >= chance
    if seeds > 2:
        assert power(ratio, 1.0, seeds - 1, level) < chance
    normal = 2 * ((norm.ppf(1 - level / 2) + norm.ppf(chance)) / ratio) ** 2  # the t test needs a few more
    assert seeds >= math.floor(normal)


def test_differences_too_small_for_any_number_of_seeds_are_an_answer_of_no() -> None:
    with pytest.raises(AnswerIsNo, match="more than 1,000,000 seeds"):
        seeds_needed(1e-6, 1.0)


def test_the_nearest_model_comes_first_and_loses_least_at_its_sparsity() -> None:
    surface = shipped_surfaces()["smelt"]
    best = float(Coefficients.of(surface).optimal_flops(1e21, 0.95))
    candidates = [Candidate(f"x{factor:g}", "none", best * factor, 0.95) for factor in (4, 0.9, 2, 0.5, 1)]
    found = choices(surface, 1e21, candidates)
    assert [one.candidate.name for one in found][:2] == ["x1", "x0.9"]
    assert found[0].excess == pytest.approx(0, abs=1e-12)
    losses = [one.loss for one in found if one.candidate.F >= best]
    assert losses == sorted(losses)
    assert found[0].outside == ()
    assert "F" in found[-1].outside
    assert found[0].tokens * found[0].candidate.F == pytest.approx(1e21)
