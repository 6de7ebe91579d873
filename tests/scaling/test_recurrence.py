"""The recurrence law and IsoFLOP optima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.isoflop import isoflop
from smelt_match.scaling.recurrence import Recurrences, fit_recurrence


def data(phi: float, counts: tuple[int, ...] = (1, 2, 4, 8)) -> Recurrences:
    """Four sizes, their looped versions, three numbers of tokens; a = 0.34, c = 0.3."""
    grid = [(N, r, D) for N in (5e7, 2e8, 6e8, 1.6e9) for r in counts for D in (1e9, 4e9, 2e10)]
    N, r, D = (np.array(column, dtype=float) for column in zip(*grid, strict=True))
    once, recurrent = 0.4 * N, 0.6 * N
    loss = 1.6 + 400 / (once + r**phi * recurrent) ** 0.34 + 900 / D**0.3
    return Recurrences(once, recurrent, r, D, loss, np.ones(len(N)))


@pytest.mark.parametrize("phi", [0.0, 0.46, 1.0])
def test_exact_end_points_give_the_law_back(phi: float) -> None:
    found = fit_recurrence(data(phi))
    k = found.fit.coefficients("recurrence")
    assert found.phi == pytest.approx(phi, abs=1e-9)
    assert float(k.E) == pytest.approx(1.6, rel=1e-8)
    assert float(k.A / 6**k.a) == pytest.approx(400, rel=1e-6)  # F is 6·N
    assert (float(k.a), float(k.K), float(k.c)) == pytest.approx((0.34, 900, 0.3), rel=1e-6)
    assert found.gradient < 1e-6


def test_noise_moves_the_exponent_little() -> None:
    exact = data(0.46)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.002, len(exact.loss)))
    found = fit_recurrence(replace(exact, loss=exact.loss * noise))
    assert found.phi == pytest.approx(0.46, abs=0.05)


def test_runs_that_do_not_tell_the_exponent_are_an_answer_of_no() -> None:
    with pytest.raises(AnswerIsNo, match="r is 2 in all rows"):
        fit_recurrence(data(0.46, counts=(2,)))
    with pytest.raises(AnswerIsNo, match="no row has recurrent parameters"):
        fit_recurrence(replace(data(0.46), recurrent=np.zeros(48)))
    with pytest.raises(AnswerIsNo, match="no minimum between"):
        fit_recurrence(data(4.0))


def isoflop_table(low: float = 0.1, high: float = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Curves around N* of the surface with a = c, where N* is proportional to C^0.5."""
    grid = [(C, x) for C in (1e18, 1e19, 1e20, 1e21) for x in np.geomspace(low, high, 9)]
    C, x = (np.array(column) for column in zip(*grid, strict=True))
    N = np.sqrt(C / 6 * 0.5) * x
    D = C / 6 / N
    return N, D, 1.5 + 300 / N**0.3 + 300 * 2**-0.3 / D**0.3


def test_isoflop_optima_follow_the_power_law() -> None:
    found = isoflop(*isoflop_table())
    assert found.exponent == pytest.approx(0.5, abs=0.005)
    assert len(found.optima) == 4
    assert found.left_out == ()
    for one in found.optima:
        assert pytest.approx(found.coefficient * one.C**found.exponent, rel=0.05) == one.N


def test_curves_with_their_least_loss_at_an_end_are_left_out() -> None:
    with pytest.raises(AnswerIsNo, match="0 budgets have a minimum within their curve"):
        isoflop(*isoflop_table(low=3, high=30))
