"""The cell bootstrap: pairs, seeds, intervals, and draws that do not pin a surface down."""

from __future__ import annotations

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.bootstrap import cell_bootstrap, interval, multiplicities
from smelt_match.scaling.fit import Fit, fit
from smelt_match.scaling.frontier import gain
from tests.scaling.synthetic import ARCHITECTURES, points

CELL = np.repeat(np.arange(12), 6)
CELLS = dict.fromkeys(ARCHITECTURES, CELL)
FITS = {arch: fit({arch: points(arch, seed=21)}) for arch in ARCHITECTURES}


def gains(fits: dict[str, Fit], draws: int = 200, seed: int = 0, paired: bool = True) -> np.ndarray:
    drawn = cell_bootstrap(fits, CELLS, draws, seed, paired).coefficients
    return np.asarray(gain(drawn["smelt"], drawn["baseline"], 1e21, 0.95))


def test_every_draw_has_as_many_cells_as_there_are() -> None:
    drawn = multiplicities(12, 500, seed=0)
    assert drawn.shape == (500, 12)
    assert np.all(drawn.sum(axis=1) == 12)
    assert np.all(drawn == drawn.round())
    assert drawn.mean(axis=0) == pytest.approx(1, abs=0.2)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    assert gains(FITS).tobytes() == gains(FITS).tobytes()
    assert gains(FITS).tobytes() != gains(FITS, seed=1).tobytes()
    assert gains(FITS, draws=50).tobytes() == gains(FITS)[:50].tobytes()


def test_a_draw_is_a_fit_of_its_resampled_end_points() -> None:
    weight = multiplicities(12, 3, seed=0)
    drawn = cell_bootstrap(FITS, CELLS, 3, seed=0)
    for draw in range(3):
        mine = points("smelt", seed=21)
        cells = np.repeat(np.arange(12), weight[draw].astype(int))
        index = np.concatenate([np.flatnonzero(CELL == cell) for cell in cells])
        again = fit({"smelt": mine.take(index)}).coefficients("smelt")
        for name in ("E", "A", "K", "a", "b", "c"):
            assert getattr(drawn.coefficients["smelt"], name)[draw] == pytest.approx(getattr(again, name), rel=1e-6)


def test_paired_draws_share_their_cells() -> None:
    """Two architectures with the same losses save nothing over each other in any paired draw."""
    same = {name: fit({name: points("smelt", seed=21)}) for name in ARCHITECTURES}
    assert np.abs(gains(same)).max() < 1e-9
    assert np.abs(gains(same, paired=False)).max() > 0.01


def test_intervals_hold_the_point_and_are_percentiles() -> None:
    values = gains(FITS, draws=400)
    low, high = interval(values)
    whole = float(gain(FITS["smelt"].coefficients("smelt"), FITS["baseline"].coefficients("baseline"), 1e21, 0.95))
    assert low < whole < high
    assert np.mean((values >= low) & (values <= high)) == pytest.approx(0.95, abs=0.01)


def test_fits_that_share_parameters_are_drawn_together() -> None:
    joint = fit({arch: points(arch, seed=21) for arch in ARCHITECTURES}, ["E"])
    drawn = cell_bootstrap(dict.fromkeys(ARCHITECTURES, joint), CELLS, 20, 0).coefficients
    assert np.array_equal(drawn["smelt"].E, drawn["baseline"].E)
    assert not np.array_equal(drawn["smelt"].A, drawn["baseline"].A)


def test_cells_that_do_not_pin_the_surface_down_are_an_answer_of_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt_match.scaling.bootstrap.MAX_GRADIENT", 0.0)
    with pytest.raises(AnswerIsNo, match="200 of 200 bootstrap draws have no optimum"):
        gains(FITS)
