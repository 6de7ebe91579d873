"""Optimal sizes read off IsoFLOP curves: which minimum counts as one."""

from __future__ import annotations

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.isoflop import isoflop

SIZES = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def curves(optimum: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four budgets with a parabola in ln N each, whose least loss is at `optimum` of the smallest size."""
    N, D, loss = [], [], []
    for C in (1e18, 1e19, 1e20, 1e21):
        sizes = (C / 1e10) ** 0.5 * SIZES
        N += sizes.tolist()
        D += (C / 6 / sizes).tolist()
        loss += (3 + 0.1 * np.log(SIZES / optimum) ** 2).tolist()
    return np.array(N), np.array(D), np.array(loss)


@pytest.mark.parametrize("optimum", [1.35, 4.0, 11.9])
def test_a_minimum_between_the_ends_counts(optimum: float) -> None:
    """At 1.35 and 11.9 the least point is the end itself, and the curve still turns before it."""
    found = isoflop(*curves(optimum))
    assert found.left_out == ()
    assert found.exponent == pytest.approx(0.5, abs=1e-6)
    assert [one.N / (one.C / 1e10) ** 0.5 for one in found.optima] == pytest.approx([optimum] * 4, rel=0.1)


@pytest.mark.parametrize("optimum", [0.5, 32.0])
def test_a_minimum_at_an_end_does_not(optimum: float) -> None:
    with pytest.raises(AnswerIsNo, match="0 budgets have a minimum"):
        isoflop(*curves(optimum))
