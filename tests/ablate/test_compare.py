"""Tables over known numbers: differences, tests, prices, printed figures, and what may be said of an order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import pytest

from smelt_match.ablate.compare import Table, mismatch, tables
from smelt_match.ablate.points import Point
from smelt_match.ablate.result import ArmResult, Horizon, SourceLoss
from smelt_match.ablate.variants import Kind
from smelt_match.errors import BadInput
from tests.ablate.conftest import points_of

PAPER_TOKENS = 215 * 10**9


def arm(nats: float, tokens: int = 1000, digest: str = "same", bytes_known: bool = True) -> ArmResult:
    """Two sources: 300 tokens of Code at ``nats``, 100 of Web a nat above."""
    sources = [
        SourceLoss(source="a", category="Code", tokens=300, bytes=900 if bytes_known else None, nats=nats * 300),
        SourceLoss(source="b", category="Web", tokens=100, bytes=400, nats=(nats + 1) * 100),
    ]
    return ArmResult(horizons=[Horizon(tokens=tokens, sources=sources)], tokens_digest=digest)


def table(
    losses: Mapping[str, list[float]], kind: Kind = "count", name: str = "nano_s85", tokens: int = 1000
) -> tuple[Table, list[Point]]:
    points = points_of(kind, name)
    results = {
        (f"{name}-{variant}", seed): arm(nats, tokens)
        for variant, own in losses.items()
        for seed, nats in enumerate(own)
    }
    (found,) = tables(kind, points, results)
    return found, points


def test_losses_are_weighted_by_tokens_and_by_sources_and_by_bytes() -> None:
    found, _ = table({"count-1": [2.0]})
    (row,) = found.rows
    assert row.loss.mean == pytest.approx(2.25)
    assert row.mean_over_sources.mean == pytest.approx(2.5)
    assert row.bits_per_byte is not None
    assert row.bits_per_byte.mean == pytest.approx(900 / math.log(2) / 1300)
    assert {name: value.mean for name, value in row.categories.items()} == pytest.approx({"Code": 2.0, "Web": 3.0})


def test_without_bytes_there_are_no_bits_per_byte() -> None:
    (found,) = tables("count", points_of("count"), {("nano_s85-count-1", 0): arm(2.0, bytes_known=False)})
    assert found.rows[0].bits_per_byte is None


def test_differences_are_paired_by_seed() -> None:
    found, _ = table({"count-1": [2.0, 3.0, 4.0], "count-2": [1.9, 2.9, 3.8]})
    row = found.rows[1]
    assert row.difference is not None
    assert row.difference.estimate.values == pytest.approx((-0.1, -0.1, -0.2))
    assert row.difference.p == pytest.approx(0.0572, abs=1e-4)  # t = −4 with 2 degrees of freedom
    assert row.p == row.difference.p  # of one point alone nothing is adjusted


def test_only_common_seeds_are_compared_after_a_failure() -> None:
    points = points_of("count")
    results = {("nano_s85-count-1", seed): arm(2.0 + seed) for seed in (0, 1, 2)}
    results |= {("nano_s85-count-2", seed): arm(1.5 + seed) for seed in (1, 2)}
    (found,) = tables("count", points, results)
    assert found.rows[1].seeds == (1, 2)
    assert found.rows[1].difference is not None
    assert found.rows[1].difference.estimate.values == pytest.approx((-0.5, -0.5))


def test_one_seed_says_that_no_order_can_be_told() -> None:
    found, _ = table({"count-1": [2.0], "count-2": [1.9]})
    assert found.rows[1].p is None
    (sentence,) = found.sentences
    assert sentence.startswith("order by mean loss: count-2 < count-1; with one seed no test is possible")
    assert "--seeds 3" in sentence


def test_an_order_within_the_noise_says_so() -> None:
    found, _ = table({"count-1": [2.0, 2.1, 2.2], "count-2": [1.9, 2.2, 2.1], "count-3": [3.0, 3.11, 3.2]})
    assert "within the noise for 1 of 3 pairs" in found.sentences[0]
    assert "count-2 and count-1" in found.sentences[0]
    assert found.sentences[1] == "count-2 has the lowest mean loss, and is not told apart from count-1"


def test_an_order_beyond_the_noise_says_so() -> None:
    found, _ = table({"count-1": [2.0, 2.1, 2.2], "count-2": [1.5, 1.61, 1.7]})
    (sentence,) = found.sentences
    assert sentence.startswith("order by mean loss: count-2 < count-1; every pair is told apart")


def test_a_missing_baseline_leaves_no_differences() -> None:
    found, _ = table({"count-2": [1.9, 1.8], "count-3": [2.0, 2.1]})
    assert all(row.difference is None for row in found.rows)
    assert found.sentences[0] == "the baseline has no result, so that there are no differences"


def test_arms_that_read_different_tokens_are_not_compared() -> None:
    results = {("nano_s85-count-1", 0): arm(2.0), ("nano_s85-count-2", 0): arm(2.0, digest="other")}
    with pytest.raises(BadInput, match="were trained on different tokens"):
        tables("count", points_of("count"), results)


def test_no_results_make_no_tables() -> None:
    assert tables("count", points_of("count"), {}) == []


def test_the_papers_figures_stand_beside_its_own_scale_alone() -> None:
    found, _ = table({"count-1": [2.0], "count-2": [1.9]}, name="200m_s85")
    assert found.source == "arXiv 2609.01343v3, Sec. 3.5"
    assert found.rows[1].printed == (Decimal("1.9257"), Decimal("-0.0188"))
    assert not table({"count-1": [2.0]})[0].source


def test_a_mismatch_is_priced_inside_the_surfaces_range_and_nowhere_else() -> None:
    point = next(point for point in points_of("count", "200m_s85") if point.variant.name == "count-2")
    inside = mismatch(point, PAPER_TOKENS)
    # −a·capacity·dlnF at F = 1.32e9 and S = 0.843: 0.42 % fewer FLOPs and 0.33 % fewer parameters cost about 0.0007
    assert inside.terms["total"].value == pytest.approx(0.0007, abs=0.0004)
    assert mismatch(point, 10**6).terms == {}
    found, _ = table({"count-1": [2.0], "count-2": [1.99]}, name="200m_s85", tokens=PAPER_TOKENS)
    row = found.rows[1]
    assert row.share is not None
    assert row.share == pytest.approx(inside.terms["total"].value / -0.01)


@pytest.mark.parametrize("kind", ["span", "depth", "count"])
def test_every_printed_point_is_a_point_of_the_sweep(kind: Kind) -> None:
    from smelt_match.ablate.published import shipped_tables

    for (own, name), (printed, _) in shipped_tables().items():
        if own == kind:
            names = [point.variant.name for point in points_of(kind, name)]
            assert list(printed.losses) == names
