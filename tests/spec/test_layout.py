"""The layout grammar: what each string means, and where a wrong one is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.errors import BadInput
from smelt_match.spec.grammar import parse_layout
from smelt_match.spec.layout import Layout

M = [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "depth", "visits"),
    [
        ("none", 3, [0, 1, 2]),
        ("mid50x2", 4, [0, 1, 2, 1, 2, 3]),
        ("mid50x2", 5, [0, 1, 2, 3, 1, 2, 3, 4]),  # 2.5 layers round up; one layer before
        ("mid33x3", 12, [0, 1, 2, 3, *[4, 5, 6, 7] * 3, 8, 9, 10, 11]),
        ("early50x2", 4, [0, 1, 0, 1, 2, 3]),
        ("full x4", 3, M * 4),
        ("fullx4", 3, M * 4),
        ("each x2", 3, [0, 0, 1, 1, 2, 2]),
        ("2-4-2x3", None, [0, 1, *[2, 3, 4, 5] * 3, 6, 7]),
        ("0-2-1x2", None, [0, 1, 0, 1, 2]),
        ("2-4-0x2", None, [0, 1, *[2, 3, 4, 5] * 2]),
        ("2-[4x3]-2", None, [0, 1, *[2, 3, 4, 5] * 3, 6, 7]),
        ("2-4x3", None, [0, 1, *[2, 3, 4, 5] * 3]),
        ("1-[1x2]-[1x3]-1", None, [0, 1, 1, 2, 2, 2, 3]),
        ("[1-[1x2]]x2", None, [0, 1, 1, 0, 1, 1]),
        ("[2-1]x2-1", None, [0, 1, 2, 0, 1, 2, 3]),
        ("loop 2-3 x2 of 4", None, [0, 1, 2, 1, 2, 3]),
        ("visits 1-3,2-3,4", None, [0, 1, 2, 1, 2, 3]),
        (" mid 50 × 2 ", 4, [0, 1, 2, 1, 2, 3]),
        ("3x1", None, [0, 1, 2]),
    ],
)
def test_a_layout_means_its_visit_list(text: str, depth: int | None, visits: list[int]) -> None:
    layout = parse_layout(text, depth)
    assert list(layout.visits) == visits
    assert layout.num_layers == len(set(visits))


@pytest.mark.parametrize(
    ("one", "other", "depth"),
    [
        ("mid50x2", "loop 4-9 x2 of 12", 12),
        ("mid50x2", "3-6-3x2", 12),
        ("2-4-2x32", "2-[4x32]-2", 8),
        ("full x2", "mid100x2", 12),
        ("none", "mid50x1", 12),
        ("each x1", "full x1", 7),
        ("early100x3", "full x3", 6),
    ],
)
def test_two_strings_with_one_visit_list_are_equal(one: str, other: str, depth: int) -> None:
    assert parse_layout(one, depth) == parse_layout(other, depth)
    assert len({parse_layout(one, depth), parse_layout(other, depth)}) == 1


def test_layouts_with_other_visits_or_depths_differ() -> None:
    assert parse_layout("full x2", 4) != parse_layout("each x2", 4)
    assert parse_layout("none", 4) != parse_layout("none", 5)


@pytest.mark.parametrize(
    ("text", "depth", "character", "says"),
    [
        ("mid50y2", 12, 6, "unexpected character"),
        ("mid50", 12, 6, "expected 'x'"),
        ("mid50x0", 12, 7, "a loop count must be between 1"),
        ("mid0x2", 12, 4, "a percentage"),
        ("mid101x2", 12, 4, "a percentage"),
        ("mid1x2", 12, 4, "less than half a layer"),
        ("full x999999999999", 12, 7, "a loop count must be between"),
        ("full x99999", 12, 6, "more than"),
        ("2-4-2x2", 12, 1, "has 8 layers, the model 12"),
        ("loop 9-4 x2 of 12", 12, 6, "before it begins"),
        ("loop 4-13 x2 of 12", 12, 6, "ends at layer 13, but the model has 12"),
        ("loop 4-9 x2", 12, 12, "expected 'of'"),
        ("[2-3", None, 5, "expected ']'"),
        ("2-3]", None, 4, "expected the end"),
        ("2--3", None, 3, "a number of layers"),
        ("", 12, 1, "a number of layers"),
        ("visits 3-1", None, 8, "before it begins"),
        ("0-0-0x2", None, 3, "the looped layers"),
        ("mid50x2 mid50x2", 12, 9, "expected the end"),
        ("mid50x2", None, 1, "needs the model's depth"),
    ],
)
def test_a_wrong_layout_points_at_the_character(text: str, depth: int | None, character: int, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_layout(text, depth)
    message = caught.value.message
    assert message.startswith(f"layout, character {character}: ")
    assert says in message
    shown, caret = message.splitlines()[1:]
    assert shown.strip() == text[:80].strip()
    assert caret.index("^") - 2 == character - 1


def test_a_visit_list_that_skips_a_block_is_refused() -> None:
    with pytest.raises(BadInput, match="layer 2 is never visited"):
        parse_layout("visits 1,3", None)


@pytest.mark.parametrize("text", ["[" * 200 + "1" + "]" * 200, "1-" * 60_000 + "1", "9999-9999", "[99x99]x99"])
def test_a_layout_that_would_exhaust_memory_or_stack_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_layout(text, None)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    depth = draw(st.integers(1, 8))
    extra = draw(st.lists(st.integers(0, depth - 1), max_size=12))
    visits = list(range(depth)) + extra
    return Layout(depth, tuple(draw(st.permutations(visits))))


@given(layouts())
def test_the_canonical_form_reads_back(layout: Layout) -> None:
    assert parse_layout(layout.canonical) == layout
    assert parse_layout(layout.canonical, layout.num_layers) == layout


@given(layouts())
def test_groups_cover_every_block_and_visit_once(layout: Layout) -> None:
    groups = layout.groups()
    assert sorted(block for blocks, _ in groups for block in blocks) == list(range(layout.num_layers))
    assert sum(len(blocks) * visits for blocks, visits in groups) == len(layout.visits)
    assert len({visits for _, visits in groups}) == len(groups)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 5))
def test_a_middle_loop_sits_in_the_middle(depth: int, percent: int, count: int) -> None:
    try:
        layout = parse_layout(f"mid{percent}x{count}", depth)
    except BadInput:
        assert 2 * percent * depth < 100
        return
    size = (2 * percent * depth + 100) // 200
    assert len(layout.visits) == depth + (count - 1) * size
    if count > 1:
        assert layout.loop == tuple(range((depth - size) // 2, (depth - size) // 2 + size))
