"""A mismatch priced along a surface: exact parts, opposite signs, intervals, and no answer outside the fit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of, control_of
from smelt_match.budget.deviation import deviation
from smelt_match.budget.ledger import Budget, ledger
from smelt_match.budget.mismatch import Price, price
from smelt_match.budget.surface import PLAUSIBLE, Surface, shipped_surfaces
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec
from tests.budget.test_ledger import contexts, specs

PAPER, BASELINE, SMELT = convention("paper"), shipped_surfaces()["baseline"], shipped_surfaces()["smelt"]
OPEN = Surface(name="open", E=1.0, A=100.0, K=1.0, a=0.3, b=0.2, c=0.5)
C = Fraction(392)
PAIRS = [f"{scale}_{level}" for scale in ("100m", "200m", "600m", "1.6b") for level in ("s85", "s95", "s97")]


def model(name: str) -> ModelSpec:
    spec = shipped()[name].spec
    assert isinstance(spec, ModelSpec)
    return spec


def budgets(baseline: str, candidate: str) -> tuple[Budget, Budget, Budget]:
    context = context_of(model(baseline))
    ends = model(baseline), model(candidate), control_of(model(baseline))
    first, second, third = (ledger(end, PAPER, context).budget for end in ends)
    return first, second, third


def of(baseline: str, candidate: str, tokens: float = 2.155e11) -> Price:
    return price(*budgets(baseline, candidate), BASELINE, [SMELT], tokens, C)


def test_surplus_flops_of_the_paper_pair_are_worth_about_four_thousandths() -> None:
    """−a·A·(1 − S)^b / F^a · dlnF of the paper's coefficients, by hand: 0.3703·0.3654·0.02833."""
    found = of("200m_s95", "200m_s95_smelt")
    assert found.explained["equal_sparsity"].value == pytest.approx(0.0038, abs=5e-5)
    assert found.explained["eq1"].value == pytest.approx(0.0025, abs=5e-5)
    assert found.explained["equal_sparsity"].value / 0.0218 == pytest.approx(0.175, abs=5e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_all_pairs_of_the_fit_have_a_price_whose_parts_add_up(name: str) -> None:
    found = of(name, f"{name}_smelt")
    assert not found.reasons
    assert found.compared == ("baseline", "smelt")
    assert found.rounded == found.compared
    assert found.rmse == {"baseline": 0.00554, "smelt": 0.00952}
    *parts, total = (term.value for term in found.terms.values())
    assert math.fsum(parts) == pytest.approx(total, abs=1e-15)
    assert all(term.low <= term.value <= term.high for term in found.terms.values())


@pytest.mark.parametrize("name", PAIRS[:4])
def test_the_total_is_the_difference_along_the_surface(name: str) -> None:
    base, cand, control = budgets(name, f"{name}_smelt")
    found = price(base, cand, control, BASELINE, [], 2.155e11, C)
    losses = [
        BASELINE.loss(float(end.flops), float(S), 2.155e11)
        for end, S in zip((base, cand), found.sparsities, strict=True)
    ]
    assert found.terms["total"].value == pytest.approx(losses[1] - losses[0], rel=1e-9)


@given(specs(), specs(), contexts)
def test_exchanging_the_ends_turns_every_term(one: ModelSpec, other: ModelSpec, context: object) -> None:
    first, second = (ledger(spec, PAPER, context).budget for spec in (one, other))  # type: ignore[arg-type]
    assume(max(map(abs, (deviation(first, second).flops, deviation(second, first).flops))) < 1000)
    there, back = price(first, second, first, OPEN, [], 1e9, C), price(second, first, first, OPEN, [], 1e9, C)
    for name, term in there.terms.items():
        assert term.value == pytest.approx(-back.terms[name].value, rel=1e-9, abs=1e-12)


@given(specs(), contexts)
def test_no_mismatch_has_no_price(spec: ModelSpec, context: object) -> None:
    budget = ledger(spec, PAPER, context).budget  # type: ignore[arg-type]
    assert all(term.value == 0 for term in price(budget, budget, budget, OPEN, [], 1e9, C).terms.values())


@given(st.sampled_from(PAIRS), st.floats(2e10, 2.155e11))
def test_the_token_count_moves_no_difference(name: str, tokens: float) -> None:
    found, other = of(name, f"{name}_smelt", tokens), of(name, f"{name}_smelt")
    assert found.reasons or found.terms == other.terms


def test_outside_the_fit_nothing_is_estimated_and_the_range_is_told() -> None:
    assert "1e+12 training tokens are outside 2e+10 to 2.155e+11" in of("200m_s95", "200m_s95_smelt", 1e12).reasons
    dense = of("200m_s0", "600m_s0")
    assert not dense.terms
    assert not dense.explained
    assert "the baseline's S 0 is outside 0.839 to 0.974" in dense.reasons
    small = of("nano_s85", "nano_s95")
    assert any("training FLOPs per token" in reason for reason in small.reasons)


def test_a_surface_alone_and_unrounded_has_no_interval() -> None:
    found = price(*budgets("200m_s95", "200m_s95_smelt"), OPEN, [], 1e9, C)
    assert not found.rounded
    assert all(term.low == term.value == term.high for term in found.terms.values())


def test_the_fitted_ranges_hold_every_fitted_row_and_the_compute_that_the_paper_prints() -> None:
    """72 end points an architecture from 1.3e19 to 2.2e21 FLOPs: 24 rows at six token counts."""
    flops = [float(ledger(model(n), PAPER, context_of(model(n))).budget.flops)
             for name in PAIRS for n in (name, f"{name}_smelt")]  # fmt: skip
    for surface in (BASELINE, SMELT):
        assert surface.flops_per_token is not None
        assert surface.flops_per_token[0] <= min(flops) <= max(flops) <= surface.flops_per_token[1]
    tokens = [steps * 256 * 4096 + 10e9 for steps in (10_000, 196_075)]
    assert min(flops) * tokens[0] == pytest.approx(1.3e19, rel=0.04)
    assert max(flops) * tokens[1] == pytest.approx(2.2e21, rel=0.03)


def test_rounding_is_told_of_the_surfaces_that_have_it() -> None:
    plain = BASELINE.model_copy(update={"half_units": {}})
    found = price(*budgets("200m_s95", "200m_s95_smelt"), plain, [SMELT], 2.155e11, C)
    assert found.compared == ("baseline", "smelt")
    assert found.rounded == ("smelt",)


def test_a_surface_of_another_context_is_not_in_the_interval() -> None:
    longer = SMELT.model_copy(update={"mean_attended_context": "2048.5"})
    found = price(*budgets("200m_s95", "200m_s95_smelt"), BASELINE, [longer], 2.155e11, C)
    assert found.compared == ("baseline",)


exponents, scales = st.floats(*PLAUSIBLE["a"]), st.floats(*PLAUSIBLE["A"])
extreme = st.builds(
    lambda A, a, b, halves: Surface(
        name="any", E=1.0, A=A, K=1.0, a=a, b=b, c=0.5,
        half_units={"A": A * halves, "a": a * halves} | ({"b": abs(b) * halves} if b else {}),
    ),
    scales, exponents, st.floats(*PLAUSIBLE["b"]).filter(lambda b: b == 0 or abs(b) > 1e-3), st.floats(0.001, 0.999),
)  # fmt: skip
amounts = st.integers(1, 10**27)


@given(extreme, st.tuples(*[st.builds(Budget, amounts.map(Fraction), st.just(0), amounts, amounts, amounts)] * 3))
def test_no_sound_surface_and_no_model_overflow(surface: Surface, models: Any) -> None:
    found = price(*models, surface, [], 1e9, C)
    assert bool(found.reasons) == (not found.terms)
    for term in found.terms.values():
        assert all(math.isfinite(value) for value in (term.value, term.low, term.high))
