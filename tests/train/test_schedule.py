"""The closed form of the learning rate, and where branches fork."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput
from smelt_match.spec.family import countable, expand
from smelt_match.train import defaults
from smelt_match.train.schedule import (
    PAPER_FORKS,
    PAPER_STEPS,
    TRUNK,
    Leg,
    Schedule,
    default_branch_steps,
    default_forks,
    forks_option,
)


@given(st.integers(1, 3000), st.integers(0, 300), st.integers(1, 200), st.data())
def test_warmup_rises_to_a_constant_from_which_branches_fall_to_nearly_nothing(
    steps: int, warmup: int, branch: int, data: st.DataObject
) -> None:
    schedule = Schedule(2e-3, min(warmup, steps), steps, branch)
    rates = [schedule.learning_rate(TRUNK, step) for step in range(steps)]
    assert rates == sorted(rates)
    assert max(rates) <= 2e-3
    assert rates[-1] == 2e-3
    fork = data.draw(st.integers(1, steps))
    falling = [schedule.learning_rate(Leg(fork), step) for step in range(branch)]
    assert falling == sorted(falling, reverse=True)
    start = schedule.learning_rate(TRUNK, fork) if fork < steps else 2e-3
    assert 0 < falling[-1] <= falling[0] < start
    middle = [schedule.learning_rate(Leg(fork), step) for step in (0, branch - 1)]
    assert sum(middle) == pytest.approx(start)  # a cosine is odd about its middle


def test_a_branch_is_half_a_cosine() -> None:
    schedule = Schedule(1.0, 10, 100, 7)
    found = [schedule.learning_rate(Leg(100), step) for step in range(7)]
    assert found == pytest.approx([0.5 + 0.5 * math.cos(math.pi * part / 8) for part in range(1, 8)])


def test_a_branch_that_forks_in_the_warmup_falls_from_there() -> None:
    assert Schedule(1.0, 10, 100, 1).learning_rate(Leg(4), 0) == pytest.approx(0.25)


def test_steps_outside_of_a_leg_have_no_rate() -> None:
    schedule = Schedule(1.0, 0, 5, 2)
    for leg, step in ((TRUNK, 5), (TRUNK, -1), (Leg(3), 2)):
        with pytest.raises(ValueError, match=f"step {step} is not in"):
            schedule.learning_rate(leg, step)


def test_the_papers_trunk_has_the_papers_branches() -> None:
    assert default_forks(PAPER_STEPS) == PAPER_FORKS
    assert default_branch_steps(PAPER_STEPS) * 256 * 4096 == pytest.approx(10e9, rel=0.005)


def test_a_short_trunk_has_them_at_the_same_places() -> None:
    assert default_forks(390) == (20, 40, 99, 199, 298, 390)
    assert default_branch_steps(390) == 19
    assert default_forks(3) == (1, 2, 3)
    assert default_branch_steps(1) == 1


@pytest.mark.parametrize(("text", "steps"), [("50,100", (50, 100)), ("7", (7,)), ("none", ()), ("3, 1,3", (1, 3))])
def test_branches_are_listed_as_steps(text: str, steps: tuple[int, ...]) -> None:
    assert forks_option(text) == steps
    assert forks_option(None) is None


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-3", "1.5", "9" * 20])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="steps of the trunk are wanted"):
        forks_option(text)


def test_defaults_follow_the_step_law_and_are_the_same_for_matched_models() -> None:
    spec = countable(expand("200m_s85")[0])
    tokens = 100 * 10**9
    expected = 1.79 * defaults.active_parameters(spec) ** -0.713 * tokens**0.307
    assert defaults.peak_learning_rate(spec, tokens) == pytest.approx(expected, rel=0.05)
    nano = countable(expand("nano_s85")[0])
    assert {defaults.peak_learning_rate(nano, given) for given in (57_000, 2_000_000, 2 * 10**9)} == {1.6e-3}
    assert defaults.peak_learning_rate(nano, tokens) > 1.6e-3
    assert defaults.active_parameters(spec) == pytest.approx(0.2e9, rel=0.2)
    assert defaults.batch_rows(205 * 10**9, 4096) == 512
    assert defaults.batch_rows(200_000, 512) == 1
    assert defaults.context_for(spec) == 4096
    assert defaults.context_for(countable(expand("nano_s85")[0])) == 512


@pytest.mark.parametrize(("rows", "context", "micro"), [(256, 4096, 2), (4, 512, 4), (6, 4096, 2), (3, 10_000, 1)])
def test_a_micro_batch_divides_the_batch(rows: int, context: int, micro: int) -> None:
    assert defaults.micro_rows(rows, context) == micro
