"""Gains on subsets: shared exponents, quartiles, differences between subsets, and exponents that do not suit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt_match.scaling.bootstrap import cell_bootstrap
from smelt_match.scaling.compare import outside
from smelt_match.scaling.design import NAMES
from smelt_match.scaling.fit import fit
from smelt_match.scaling.frontier import Coefficients, gain
from smelt_match.scaling.subsets import (
    FLAGGED_RATIO,
    SubsetGain,
    differences,
    quartile_gains,
    quartile_shares,
    subset_fit,
    subset_gains,
)
from tests.scaling.synthetic import ARCHITECTURES, points, shipped_surfaces

PAIR = ("smelt", "baseline")
FITS = {arch: fit({arch: points(arch, seed=21)}) for arch in ARCHITECTURES}
BOTH = (FITS["smelt"], FITS["baseline"])


def test_a_subset_with_the_same_exponents_gives_its_intercepts_back() -> None:
    exact = fit({"smelt": points("smelt")})
    truth = Coefficients.of(shipped_surfaces()["smelt"])
    other = replace(truth, E=0.8 * truth.E, A=1.1 * truth.A, K=0.5 * truth.K)
    mine = points("smelt")
    found = subset_fit(exact, "smelt", np.asarray(other.loss(mine.F, mine.S, mine.D)), "code")
    for name in NAMES:
        assert float(getattr(found.fit.coefficients("smelt"), name)) == pytest.approx(getattr(other, name), rel=1e-7)
    assert found.ratio == 1.0  # both objectives are rounding
    assert not found.flagged


def test_exponents_that_do_not_suit_are_flagged() -> None:
    truth = Coefficients.of(shipped_surfaces()["smelt"])
    steep = replace(truth, a=0.6, A=truth.A * 150)
    mine = points("smelt")
    noise = np.random.default_rng(0).normal(0, 0.004, len(mine))
    found = subset_fit(FITS["smelt"], "smelt", np.asarray(steep.loss(mine.F, mine.S, mine.D)) + noise, "code")
    assert found.ratio > FLAGGED_RATIO
    assert found.flagged


def test_the_aggregate_as_a_subset_has_the_gain_of_the_aggregate() -> None:
    losses = {"all": (points("smelt", seed=21).loss, points("baseline", seed=21).loss)}
    (found,) = subset_gains(BOTH, PAIR, losses, 1e21, 0.95)
    ours, theirs = (FITS[name].coefficients(name) for name in PAIR)
    assert found.gain == pytest.approx(float(gain(ours, theirs, 1e21, 0.95)), rel=1e-6)
    assert found.ratios == pytest.approx((1, 1), abs=1e-6)
    assert found.interval is None


def test_the_aggregate_as_a_subset_is_as_extrapolated_as_the_aggregate() -> None:
    losses = {"all": (points("smelt", seed=21).loss, points("baseline", seed=21).loss)}
    surfaces = [one.surface(name) for one, name in zip(BOTH, PAIR, strict=True)]
    for C, S in ((1e20, 0.95), (1e22, 0.95), (1e20, 0.5)):
        (found,) = subset_gains(BOTH, PAIR, losses, C, S)
        assert found.outside == outside(*surfaces, C, S)
        assert bool(found.outside) == ((C, S) != (1e20, 0.95))


def test_a_quartile_is_as_extrapolated_as_any_of_its_sources() -> None:
    told = [("C", "D*"), ("C", "F*"), (), ()]
    gains = [SubsetGain(str(i), 0.1, None, (1, 1), False, one) for i, one in enumerate(told)]
    found = quartile_gains(gains, np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0]]), None)
    assert [one.outside for one in found] == [("C", "F*", "D*"), ("C", "F*", "D*"), (), ()]


def test_subset_draws_take_the_exponents_of_their_draw() -> None:
    cells = dict.fromkeys(PAIR, np.repeat(np.arange(12), 6))
    drawn = cell_bootstrap({name: FITS[name] for name in PAIR}, cells, 60, 0)
    losses = {"all": (points("smelt", seed=21).loss, points("baseline", seed=21).loss)}
    (found,) = subset_gains(BOTH, PAIR, losses, 1e21, 0.95, drawn)
    whole = gain(drawn.coefficients["smelt"], drawn.coefficients["baseline"], 1e21, 0.95)
    assert found.draws == pytest.approx(np.asarray(whole), abs=1e-6)


def test_quartiles_of_39_sources_are_10_10_10_and_9() -> None:
    losses = np.random.default_rng(0).permuted(np.tile(np.arange(39.0), (7, 1)), axis=1)
    shares = quartile_shares(losses)
    assert (shares > 0).sum(axis=2).T.tolist() == [[10, 10, 10, 9]] * 7
    assert shares.sum(axis=2) == pytest.approx(1)
    for pair in range(7):
        for quartile in range(3):
            inside, above = (losses[pair][shares[q, pair] > 0] for q in (quartile, quartile + 1))
            assert inside.max() < above.min()


def test_quartile_gains_follow_each_pair_and_each_draw() -> None:
    """Two pairs that rank four sources the other way round: every quartile is half of two sources."""
    gains = [SubsetGain(str(i), 0.1 * i, np.full(3, 0.1 * i), (1, 1), False) for i in range(4)]
    losses = np.array([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    plain = quartile_gains(gains, losses, None)
    assert [one.gain for one in plain] == pytest.approx([0.15] * 4)
    assert [one.name for one in plain] == ["Q1", "Q2", "Q3", "Q4"]
    weight = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0]])
    first = quartile_gains(gains, losses, weight)[0].draws
    assert first == pytest.approx([0.15, 0.0, 0.3])


def test_differences_are_taken_within_draws() -> None:
    common = np.random.default_rng(0).normal(0, 0.1, 500)
    one = SubsetGain("code", 0.2, 0.2 + common, (1, 1), False)
    two = SubsetGain("web", 0.1, 0.1 + common, (1, 1), False)
    (found,) = differences([two, one])
    assert (found.first, found.second) == ("code", "web")
    assert found.interval == pytest.approx((0.1, 0.1))
    assert found.value == pytest.approx(0.1)
