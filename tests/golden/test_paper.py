"""Every printed figure of the paper's Appendix A and Sec. 3.2, from specs and formulas alone."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import count
from smelt_match.spec.family import countable, expand, shipped
from smelt_match.spec.model import ModelSpec, PublishedRow
from smelt_match.units import Printed

PAPER = convention("paper")
with (Path(__file__).parent / "appendix_a.csv").open(encoding="utf-8") as stream:
    ROWS = {row["model"]: row for row in csv.DictReader(stream)}
BASELINES = [name for name in ROWS if not name.endswith("_smelt")]
DECODED = [name for name in ROWS if name.endswith("_smelt") and "_s0_" not in name]


def spec(name: str) -> ModelSpec:
    return countable(shipped()[name])


def printed(name: str, figure: str) -> Printed | None:
    return Printed(ROWS[name][figure]) if ROWS[name][figure] else None


def test_the_appendix_has_sixteen_rows_of_each_kind() -> None:
    assert (len(BASELINES), len(DECODED), len(ROWS)) == (16, 12, 32)
    assert [entry.spec.name for entry in expand("smelt")] == BASELINES


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_row_has_every_printed_digit(name: str) -> None:
    counted = count(spec(name), PAPER)
    ours = {
        "params_active": Fraction(counted.budget.active),
        "params_total": Fraction(counted.budget.params),
        "sparsity": counted.sparsity,
    }
    for figure, value in ours.items():
        claim = printed(name, figure)
        if claim is None:
            assert (name, figure) == ("600m_s85", "params_total")  # cut off in the text
        else:
            assert claim.agrees(value), (figure, claim.text, float(value))


@pytest.mark.parametrize("name", DECODED)
def test_a_decoded_smelt_row_has_every_printed_digit(name: str) -> None:
    ours, theirs = count(spec(name), PAPER).budget, count(spec(name.removesuffix("_smelt")), PAPER).budget
    found = {
        "params_active": Fraction(ours.active),
        "params_total": Fraction(ours.params),
        "flops_ratio": ours.flops / theirs.flops,
        "kv_ratio": Fraction(ours.kv, theirs.kv),
    }
    for figure, value in found.items():
        claim = printed(name, figure)
        assert claim is not None
        assert claim.agrees(value), (figure, claim.text, float(value))


@pytest.mark.parametrize(
    ("name", "printed_flops", "exact"),
    [("200m_s95", "1.33e9", 1_328_578_560), ("200m_s95_smelt", "1.37e9", 1_366_751_232)],
)
def test_the_training_flops_of_section_3_2(name: str, printed_flops: str, exact: int) -> None:
    flops = count(spec(name), PAPER).budget.flops
    assert flops == exact
    assert Printed(printed_flops).agrees(flops)


@pytest.mark.parametrize("name", [*BASELINES, *DECODED])
def test_the_shipped_expected_block_carries_the_same_figures(name: str) -> None:
    carried = {figure: value.text for figure, value in spec(name).expected.items()}
    for figure in ("params_active", "params_total", "sparsity", "flops_ratio", "kv_ratio"):
        claim = printed(name, figure)
        assert carried.get(figure) == (None if claim is None else claim.text)


@pytest.mark.parametrize("name", [name for name in ROWS if "_s0_smelt" in name])
def test_the_four_undecodable_rows_are_carried_as_printed(name: str) -> None:
    row = shipped()[name].spec
    assert isinstance(row, PublishedRow)
    assert row.status == "not-decodable"
    carried = {figure: value.text for figure, value in row.expected.items()}
    assert carried["params_active"] == ROWS[name]["params_active"]
    assert carried["flops_ratio"] == ROWS[name]["flops_ratio"]


@pytest.mark.parametrize("name", DECODED)
def test_any_mean_context_in_the_recovered_interval_reproduces_the_flops_ratio(name: str) -> None:
    from smelt_match.budget.context import Context

    claim = printed(name, "flops_ratio")
    assert claim is not None
    for c in (Fraction(779, 2), Fraction(392), Fraction(789, 2)):
        context = Context.given(c, "test")
        ours = count(spec(name), PAPER, context).budget.flops
        theirs = count(spec(name.removesuffix("_smelt")), PAPER, context).budget.flops
        assert claim.agrees(ours / theirs), (c, float(ours / theirs))


def test_the_looped_layers_are_those_the_appendix_names() -> None:
    loops = {depth: spec(f"{scale}_s85_smelt").visits.loop for scale, depth in
             (("100m", 10), ("200m", 12), ("600m", 20), ("1.6b", 30))}  # fmt: skip
    spans = {depth: (blocks[0] + 1, blocks[-1] + 1) for depth, blocks in loops.items()}
    assert spans == {10: (3, 7), 12: (4, 9), 20: (6, 15), 30: (8, 22)}
