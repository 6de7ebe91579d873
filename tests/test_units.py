"""Exact numbers in and out."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput
from smelt_match.units import MAX_COUNT, Printed, grouped, parse_count, parse_fraction, percent, short_fraction


@pytest.mark.parametrize(
    ("text", "value"),
    [("392", 392), ("0.5", Fraction(1, 2)), ("1e-3", Fraction(1, 1000)), ("3/4", Fraction(3, 4)),
     ("0.5%", Fraction(1, 200)), (" 1 % ", Fraction(1, 100)), ("2.5e2", 250)],
)  # fmt: skip
def test_a_number_is_read_exactly(text: str, value: Fraction) -> None:
    assert parse_fraction(text, "it") == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "nan", "inf", "1/0", "1e9999", "1__0", "0x10", "1" * 100, "__import__('os')", "٢", "٠.٨", "1/٢", "1e٢"],
)
def test_what_is_not_a_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match=r"^it: "):
        parse_fraction(text, "it")


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("200k", 200_000), ("1.5B", 1_500_000_000), ("2e6", 2_000_000)]
)
def test_a_count_is_read_exactly(text: str, value: int) -> None:
    assert parse_count(text, "it") == value
    assert parse_count(str(MAX_COUNT), "it") == MAX_COUNT


@pytest.mark.parametrize(
    ("text", "told"),
    [("1e30", "it: '1e30' is too large"), (str(MAX_COUNT + 1), "is too large"), ("9999999999T", "is too large"),
     ("0", "not a whole number of at least 1"), ("-3", "not a whole number of at least 1"),
     ("1.5", "not a whole number of at least 1"), ("1e-300", "not a whole number of at least 1"),
     ("k", "it: '' is not a number"), ("٢k", "it: '٢k' is not a number"), ("2\N{KELVIN SIGN}", "is not a number")],
)  # fmt: skip
def test_what_is_not_a_count_is_refused_by_what_is_wrong_with_it(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        parse_count(text, "it")


@pytest.mark.parametrize(
    ("value", "text"),
    [(Fraction(0), "0 %"), (Fraction(1, 32), "+3.13 %"), (Fraction(-1, 64), "−1.56 %"),
     (Fraction(1, 10**9), "+0.0000001 %"), (Fraction(-1, 10**6), "−0.0001 %"),
     (Fraction(-1, 32), "−3.13 %"), (Fraction(2), "+200.00 %")],
)  # fmt: skip
def test_a_percentage_rounds_half_away_from_zero_and_never_looks_like_zero(value: Fraction, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("printed", "value", "agrees"),
    [("0.100e9", 100_400_000, True), ("0.100e9", 100_600_000, False), ("0.10e9", 100_600_000, True),
     ("3.57", Fraction("3.565"), True), ("3.57", Fraction("3.5649"), False), ("86.0e-2", Fraction("0.8604"), True)],
)  # fmt: skip
def test_a_printed_figure_agrees_to_half_a_unit_of_its_last_digit(printed: str, value: Fraction, agrees: bool) -> None:
    assert Printed(printed).agrees(Fraction(value)) is agrees


@pytest.mark.parametrize("text", ["", "abc", "nan", "inf", "1e999"])
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a printed figure"):
        Printed(text)


@given(st.fractions())
def test_short_spellings_read_back_exactly(value: Fraction) -> None:
    assert Fraction(short_fraction(value)) == value


def test_a_count_that_is_not_whole_shows_its_fraction() -> None:
    assert grouped(1234567) == "1,234,567"
    assert grouped(Fraction(3703, 3)) == "1,234 + 1/3"
