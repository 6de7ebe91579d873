"""The axes of the paper's sweeps, read, placed, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.ablate.variants import KINDS, Kind, variants
from smelt_match.errors import BadInput


def test_the_papers_spans_at_its_depth() -> None:
    found = variants("span", 12)
    assert [v.value for v in found] == [0, 2, 4, 6, 8, 10, 12]
    assert [len(v.layout.visits) for v in found] == [12, 14, 16, 18, 20, 22, 24]


def test_the_papers_depths_at_its_depth() -> None:
    found = variants("depth", 12)
    assert [(v.name, len(v.layout.visits)) for v in found] == [
        ("baseline-9", 9), ("baseline-12", 12), ("baseline-15", 15), ("baseline-18", 18),
        ("looped-8", 12), ("looped-10", 15), ("looped-12", 18), ("looped-14", 21),
    ]  # fmt: skip


def test_the_papers_counts_at_its_depth() -> None:
    assert [(v.value, len(v.layout.visits)) for v in variants("count", 12)] == [(1, 12), (2, 18), (3, 24), (4, 30)]


@given(L=st.integers(2, 40), data=st.data())
def test_a_span_loops_exactly_its_layers_with_the_rest_around_them(L: int, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, L))
    variant = variants("span", L, f"{m}")[-1]
    before = (L - m) // 2
    assert variant.layout.loop == tuple(range(before, before + m))
    assert set(variant.layout.counts) <= {1, 2}
    assert len(variant.layout.visits) == L + m


@pytest.mark.parametrize("kind", KINDS)
@given(L=st.integers(4, 60))
def test_the_reference_is_always_among_the_points_once(kind: Kind, L: int) -> None:
    found = variants(kind, L)
    assert sum(v.layout.is_unlooped and v.layout.num_layers == L for v in found) == 1
    assert len({v.name for v in found}) == len(found)


def test_the_reference_comes_with_points_that_leave_it_out() -> None:
    assert [v.name for v in variants("count", 12, "3")] == ["count-1", "count-3"]
    assert [v.name for v in variants("depth", 12, "8x2,9")] == ["baseline-12", "looped-8", "baseline-9"]


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("span", "13", "13 looped layers, but the baseline has 12"),
        ("span", "2x2", "'2x2' is not understood"),
        ("span", "", "'' is not understood"),
        ("span", "4-2", "4 is more than 2"),
        ("span", "0", "nothing to compare"),
        ("count", "0", "0 visits; 1 to 64 are possible"),
        ("count", "1-100", "more than 64 points"),
        ("count", "two", "'two' is not understood"),
        ("depth", "0", "0 layers; 1 to 512 are possible"),
        ("depth", "8x3", "'8x3' is not understood"),
        ("depth", "9999", "9999 layers; 1 to 512 are possible"),
        ("depth", "12", "nothing to compare"),
    ],
)
def test_points_that_do_not_exist_are_refused(kind: Kind, text: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        variants(kind, 12, text)
    assert told in f"{caught.value.message} {caught.value.hint}"
