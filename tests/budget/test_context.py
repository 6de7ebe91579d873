"""Mean attended contexts are exact, with and without windows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.budget.context import Context, read_lengths
from smelt_match.errors import BadInput


def test_one_causal_document_of_783_tokens_has_392() -> None:
    assert Context.causal(783).mean == 392
    assert Context.causal(4096).mean == Fraction(4097, 2)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.none() | st.integers(1, 50))
def test_the_mean_is_that_of_every_token_counted(lengths: list[int], window: int | None) -> None:
    seen = [min(i, window or i) for length in lengths for i in range(1, length + 1)]
    context = Context.documents(lengths, window, "test")
    assert context.mean == Fraction(sum(seen), len(seen))
    assert context.full == Fraction(sum(i for n in lengths for i in range(1, n + 1)), sum(lengths))


def test_lengths_are_read_from_lines_and_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text('3\n\n 5 \n{"length": 7, "source": "web"}\n', encoding="utf-8")
    assert read_lengths(path) == [3, 5, 7]


@pytest.mark.parametrize("line", ["0", "-3", "1.5", "ten", '{"len": 3}', '{"length": true}', '{"length": 1e30}', "[]"])
def test_a_bad_length_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "lengths"
    path.write_text(f"3\n{line}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"lengths:2: not a document length"):
        read_lengths(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Context.causal(0),
        lambda: Context.documents([], None, ""),
        lambda: Context.documents([3], 0, ""),
        lambda: Context.given(Fraction(1, 2), ""),
    ],
)
def test_an_impossible_context_is_refused(make: object) -> None:
    with pytest.raises(BadInput):
        make()  # type: ignore[operator]
