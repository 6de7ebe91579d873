"""The frontier and the gain: the paper's figures from its printed coefficients, and the algebra behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from smelt_match.budget.surface import shipped_surfaces
from smelt_match.scaling.compare import savings
from smelt_match.scaling.frontier import Coefficients, crossover_tokens, gain, turns

BASELINE, SMELT = (Coefficients.of(shipped_surfaces()[name]) for name in ("baseline", "smelt"))
S = (0.85, 0.95, 0.97)
PRINTED_GAINS = {1e20: (10.0, 7.8, 6.8), 1e21: (18.0, 15.8, 14.7), 1e22: (23.5, 20.9, 19.6)}  # Sec. 4.3, per cent
PRINTED_TPP = {"baseline": (56, 78, 91), "smelt": (56, 75, 86)}

surfaces = st.builds(
    Coefficients, E=st.floats(0.5, 2), A=st.floats(1e2, 1e4), K=st.floats(1e4, 1e8), a=st.floats(0.2, 0.6),
    b=st.floats(0, 0.4), c=st.floats(0.3, 0.9),
)  # fmt: skip
budgets = st.floats(18, 26).map(lambda power: 10**power)
sparsities = st.floats(0, 0.99)


def test_frontier_exponents_are_those_printed() -> None:
    assert (round(float(BASELINE.gamma), 3), round(float(SMELT.gamma), 3)) == (0.237, 0.250)


@pytest.mark.parametrize("C", PRINTED_GAINS)
def test_nine_gains_are_within_two_tenths_of_a_point_of_print(C: float) -> None:
    found = [100 * float(gain(SMELT, BASELINE, C, s)) for s in S]
    assert found == pytest.approx(PRINTED_GAINS[C], abs=0.2)


def test_six_allocations_round_to_those_printed() -> None:
    for name, printed in PRINTED_TPP.items():
        surface = Coefficients.of(shipped_surfaces()[name])
        assert tuple(round(float(surface.tokens_per_parameter(1e21, s))) for s in S) == printed


def test_data_terms_cross_where_the_paper_says() -> None:
    assert float(crossover_tokens(SMELT, BASELINE)) == pytest.approx(1.62e10, rel=0.02)


def test_gain_peaks_and_changes_sign() -> None:
    for s in S:
        found = turns(SMELT, BASELINE, s)
        assert found.peak is not None
        assert 22.6 <= round(math.log10(found.peak[0]), 1) <= 22.9
        assert 0.20 <= found.peak[1] <= 0.255
        *below, last = found.signs
        assert 24.8 <= round(math.log10(last), 1) <= 25.3
        assert len(below) == 1  # below the crossover of the data terms the target loses
        assert below[0] < 3e19
        for C in found.signs:
            assert abs(float(gain(SMELT, BASELINE, C, s))) < 1e-8


def test_without_a_peak_or_a_change_of_sign_none_is_told() -> None:
    better = Coefficients(SMELT.E, SMELT.A * 0.9, SMELT.K * 0.9, SMELT.a, SMELT.b, SMELT.c)
    found = turns(better, SMELT, 0.95)
    assert found.signs == ()
    assert turns(SMELT, SMELT, 0.95).signs == ()


@given(surface=surfaces, C=budgets, s=sparsities)
def test_allocation_is_the_optimum(surface: Coefficients, C: float, s: float) -> None:
    F = float(surface.optimal_flops(C, s))
    best = float(surface.frontier(C, s))
    assert float(surface.loss(F, s, C / F)) == pytest.approx(best, rel=1e-12)
    for factor in (0.9, 0.999, 1.001, 1.1):
        assert float(surface.loss(F * factor, s, C / (F * factor))) >= best * (1 - 1e-14)
    free = minimize_scalar(
        lambda x: float(surface.loss(np.exp(x), s, C / np.exp(x))), bounds=(np.log(F) - 3, np.log(F) + 3),
        method="bounded", options={"xatol": 1e-12},
    )  # fmt: skip
    assert best == pytest.approx(float(free.fun), rel=1e-12)


@given(surface=surfaces, C=budgets, s=sparsities)
def test_reducible_loss_is_a_power_law_in_compute(surface: Coefficients, C: float, s: float) -> None:
    ratio = (surface.frontier(10 * C, s) - surface.E) / (surface.frontier(C, s) - surface.E)
    assert float(ratio) == pytest.approx(10 ** -float(surface.gamma), rel=1e-6)


@given(surface=surfaces, other=surfaces, C=budgets, s=sparsities)
def test_compute_for_inverts_the_frontier(surface: Coefficients, other: Coefficients, C: float, s: float) -> None:
    loss = surface.frontier(C, s)
    if float(loss - surface.E) > 1e-6:
        assert float(surface.compute_for(loss, s)) == pytest.approx(C, rel=1e-5)
    saved = float(gain(other, surface, C, s))
    assert saved <= 1
    assert (saved > 0) == (float(surface.compute_for(other.frontier(C, s), s)) > C)


@given(surface=surfaces, C=budgets, s=sparsities)
def test_nothing_is_saved_over_oneself(surface: Coefficients, C: float, s: float) -> None:
    if float(surface.frontier(C, s) - surface.E) > 1e-6:
        assert float(gain(surface, surface, C, s)) == pytest.approx(0, abs=1e-6)


def test_a_reference_that_never_gets_there_makes_the_gain_whole() -> None:
    stuck = Coefficients(3.0, 1.0, 1.0, 0.3, 0.1, 0.5)
    assert float(gain(SMELT, stuck, 1e21, 0.95)) == 1.0
    assert np.isinf(stuck.compute_for(SMELT.frontier(1e21, 0.95), 0.95))


def test_arrays_of_coefficients_give_arrays() -> None:
    many = Coefficients(*(np.array([value, value]) for value in (SMELT.E, SMELT.A, SMELT.K, SMELT.a, SMELT.b, SMELT.c)))
    found = gain(many, BASELINE, 1e21, 0.95)
    assert found.shape == (2,)
    assert float(many.take(1).gamma) == float(SMELT.gamma)


def test_what_lies_outside_the_fit_is_named() -> None:
    target, reference = shipped_surfaces()["smelt"], shipped_surfaces()["baseline"]
    inside, far, sparse = (
        savings(target, reference, [C], [s])[0] for C, s in ((1e21, 0.95), (1e22, 0.95), (1e21, 0.5))
    )
    assert inside.outside == ()
    assert set(far.outside) == {"C", "C_ref", "F*", "F*_ref", "D*", "D*_ref"}
    assert "S" in sparse.outside
    at_least_sparse = savings(target, reference, [1e21], [0.85])[0]  # the paper marks only its 1e22 row
    assert at_least_sparse.outside == ("F*",)
