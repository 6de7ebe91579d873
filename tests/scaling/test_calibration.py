"""Calibration curves: what they recover, what they say is not identified, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.calibration import Sigmoid, calibrate

LOSS = np.linspace(1.6, 2.6, 60)


def curve(direction: int) -> Sigmoid:
    """A curve whose whole height lies within the losses."""
    return Sigmoid(0.6, 0.25, 8.0, 2.1, direction, 1.0, 0.0, (0.0, 0.0, 0.0, 0.0), 60)


@pytest.mark.parametrize("direction", [-1, 1])
def test_exact_points_give_the_curve_back(direction: int) -> None:
    truth = curve(direction)
    found = calibrate(LOSS, truth.at(LOSS), direction, "x")
    assert (found.a, found.b, found.alpha, found.tau) == pytest.approx((0.6, 0.25, 8.0, 2.1), rel=1e-6)
    assert found.r2 == pytest.approx(1)
    assert found.unidentified == []
    assert found.excess(LOSS, truth.at(LOSS)) == pytest.approx(0, abs=1e-9)


def test_scores_fall_and_losses_rise() -> None:
    assert np.all(np.diff(curve(-1).at(LOSS)) < 0)
    assert np.all(np.diff(curve(1).at(LOSS)) > 0)


def test_excess_is_positive_where_the_target_does_better() -> None:
    for direction in (-1, 1):
        better = curve(direction).at(LOSS) - direction * 0.02
        assert curve(direction).excess(LOSS, better) == pytest.approx(0.02)


def test_shift_and_unit_of_loss_and_score_carry_over() -> None:
    score = curve(-1).at(LOSS) + np.random.default_rng(0).normal(0, 0.01, len(LOSS))
    one = calibrate(LOSS, score, -1, "x")
    two = calibrate(LOSS * 10 + 3, score * 100 - 7, -1, "x")
    assert two.at(LOSS * 10 + 3) == pytest.approx(one.at(LOSS) * 100 - 7, rel=1e-5)
    assert two.r2 == pytest.approx(one.r2, rel=1e-8)


def test_ends_that_the_points_do_not_reach_are_not_identified() -> None:
    tail = LOSS[LOSS > 2.4]  # the foot of the curve only
    score = curve(-1).at(tail) + np.random.default_rng(0).normal(0, 0.003, len(tail))
    found = calibrate(tail, score, -1, "x")
    assert {"a", "tau"} <= set(found.unidentified)
    assert found.at(tail) == pytest.approx(curve(-1).at(tail), abs=0.01)


def test_errors_are_those_of_repeated_noise() -> None:
    """Against the spread over 200 refits; relative errors are over the value, scaled ones over a or 1/α."""
    truth, generator = curve(-1), np.random.default_rng(0)
    refits = [calibrate(LOSS, truth.at(LOSS) + generator.normal(0, 0.01, 60), -1, "x") for _ in range(200)]
    spread = np.std([(one.a, one.b, one.alpha, one.tau) for one in refits], axis=0)
    assert np.median([one.errors for one in refits], axis=0) == pytest.approx(spread, rel=0.15)
    one = refits[0]
    a, b, alpha, tau = one.errors
    assert one.relative_errors == pytest.approx([a / one.a, b / one.b, alpha / one.alpha, tau / one.tau])
    assert one.scaled_errors == pytest.approx([a / one.a, b / one.a, alpha / one.alpha, tau * one.alpha])


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [(0.6, 0.25, []), (1.4, -0.2, ["a > 1", "b < 0", "a + b > 1"]), (0.9, 0.2, ["a + b > 1"]), (0.6, -0.1, ["b < 0"])],
)
def test_what_a_share_cannot_have_is_not_plausible(a: float, b: float, told: list[str]) -> None:
    score = Sigmoid(a, b, 8.0, 2.1, -1, 1.0, 0.0, (0.0,) * 4, 60).at(LOSS)
    within = (score >= 0) & (score <= 1)
    assert calibrate(LOSS[within], score[within], -1, "x").implausible == told
    assert calibrate(LOSS, score * 100, -1, "x").implausible == []
    assert calibrate(-LOSS[within], score[within], 1, "x").implausible == []


@pytest.mark.parametrize(
    ("loss", "score", "told"),
    [
        (LOSS, LOSS * 2, "no curve that falls with the loss"),
        (LOSS[:5], -LOSS[:5], "5 end points"),
        (LOSS, np.full(60, 0.5), "the metric is the same"),
        (np.full(60, 2.0), LOSS, "the loss is the same"),
    ],
)
def test_what_has_no_curve_is_an_answer_of_no(loss: np.ndarray, score: np.ndarray, told: str) -> None:
    with pytest.raises(AnswerIsNo, match=told):
        calibrate(loss, score, -1, "x")
