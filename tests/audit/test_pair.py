"""Two models compared: exact ratios, one context, verdicts, and the line that differs most."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.audit.pair import Audit, audit
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, Convention, convention
from smelt_match.budget.count import context_of
from smelt_match.budget.tolerance import Tolerance
from smelt_match.errors import BadInput
from smelt_match.spec.family import shipped
from smelt_match.spec.model import ModelSpec
from tests.budget.test_ledger import contexts, rules, specs

PAPER = convention("paper")


def between(baseline: str, candidate: str, rule: Convention = PAPER, context: Context | None = None) -> Audit:
    return audit(shipped()[baseline].spec, shipped()[candidate].spec, rule, context)


def test_the_paper_pair_is_matched_with_the_mismatches_it_prints() -> None:
    """arXiv 2609.01343v3, Sec. 3.2: +2.9 % FLOPs, +0.4 % parameters, the cache within 4 %."""
    found = between("200m_s95", "200m_s95_smelt")
    assert (found["flops"].baseline, found["flops"].candidate) == (1328578560, 1366751232)
    assert found["flops"].deviation == pytest.approx(0.0287, abs=5e-5)
    assert found["params"].deviation == pytest.approx(0.0043, abs=5e-5)
    assert found["kv"].deviation == Fraction(1, 32)
    assert found["attention"].deviation == Fraction(19, 80)
    assert found.verdict.is_matched
    assert found["attention"].verdict is None


@given(specs(), rules, contexts)
def test_a_model_against_itself_is_exactly_one_everywhere(spec: ModelSpec, rule: Convention, context: Context) -> None:
    found = audit(spec, spec, rule, context, Tolerance(Fraction(0), Fraction(0), Fraction(0)))
    assert {row.quantity for row in found.compared} >= {"flops", "params", "kv"}
    assert all(row.ratio == 1 and row.line is None for row in found.compared)
    assert found.verdict.is_matched


@given(specs(), specs(), rules, contexts)
def test_exchanging_the_ends_inverts_every_ratio(
    one: ModelSpec, other: ModelSpec, rule: Convention, context: Context
) -> None:
    there, back = audit(one, other, rule, context), audit(other, one, rule, context)
    assert [row.quantity for row in there.compared] == [row.quantity for row in back.compared]
    for first, second in zip(there.compared, back.compared, strict=True):
        if first.ratio is None:
            assert second.ratio is None
            assert first.missing
            continue
        assert first.ratio * (second.ratio or 0) == 1
        if first.line is not None:
            assert second.line is not None
            assert abs(first.line.difference) == abs(second.line.difference)


@given(specs(), specs(), contexts, st.sampled_from(["flops", "params", "kv", "attention"]))
def test_the_line_that_differs_most_is_in_both_ledgers(
    one: ModelSpec, other: ModelSpec, context: Context, quantity: str
) -> None:
    row = audit(one, other, PAPER, context)[quantity]  # type: ignore[index]
    assert row.baseline is not None
    assert row.candidate is not None
    if row.line is not None:
        assert 0 <= row.line.values[0] <= row.baseline
        assert 0 <= row.line.values[1] <= row.candidate
    else:
        assert row.ratio == 1


@pytest.mark.parametrize("name", ["nano_s85", "200m_s95_smelt", "ouro-1.4b", "mor-360m-expert3", "lee-d128-looped-moe"])
def test_shipped_models_against_themselves(name: str) -> None:
    for rule in CONVENTIONS.values():
        assert all(row.ratio == 1 for row in between(name, name, rule).compared)


def stated(means: st.SearchStrategy[str | None]) -> st.SearchStrategy[ModelSpec]:
    """Random models that state a context, or leave it to the default; some with sliding windows."""
    return st.builds(
        lambda spec, mean, window: spec.changed(mean_attended_context=mean, sliding_window=window),
        specs(), means, st.none() | st.integers(1, 5000),
    )  # fmt: skip


means = st.none() | st.integers(1, 6000).map(lambda halves: f"{halves + 1}/2")


@given(stated(means), stated(means), rules)
def test_models_of_different_contexts_are_reciprocal_too(one: ModelSpec, other: ModelSpec, rule: Convention) -> None:
    there, back = audit(one, other, rule), audit(other, one, rule)
    assert there.context.mean == back.context.mean == max(context_of(one).mean, context_of(other).mean)
    assert [(row.quantity, row.ratio) for row in there.compared] == [
        (row.quantity, None if row.ratio is None else 1 / row.ratio) for row in back.compared
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [("200m_s95", "lee-d128-base"), ("saunshi-12x2", "mor-360m-vanilla"), ("200m_s95", "inkling-2-mini")],
)
def test_the_longer_context_is_that_of_both_whichever_is_named_first(one: str, other: str) -> None:
    there, back = between(one, other), between(other, one)
    assert [row.ratio for row in there.compared] == [1 / row.ratio for row in back.compared if row.ratio]
    assert there.context == back.context
    assert "the longer of the two" in there.context.origin


def test_windows_cut_the_one_document_that_has_the_mean() -> None:
    found = between("200m_s95", "inkling-2-mini", context=Context.given(Fraction(392), "given"))
    assert found.context.lengths == ((783, 1),)
    assert found.context.mean == 392
    assert "taken as one causal document of 783 tokens" in found.context.origin
    bare = between("200m_s95", "200m_s95_smelt", context=Context.given(Fraction(392), "given"))
    assert not bare.context.lengths
    with pytest.raises(BadInput, match="needs document lengths"):
        between("200m_s95", "inkling-2-mini", context=Context.given(Fraction(1000, 3), "given"))


def test_weights_under_two_names_are_one_line_and_equal_totals_have_none() -> None:
    found = between("mor-360m-expert3", "mor-360m-expert3-kv-share")
    assert found["params"].ratio == 1
    assert found["params"].line is None
    line = found["flops"].line
    assert line is not None
    assert line.component == "attention projections"
    assert -line.difference == 6 * 10 * 2 * 960 * 5 * 64 == 36_864_000  # K and V of ten layers, at their second visit
    assert found["flops"].candidate is not None
    assert found["flops"].baseline is not None
    assert found["flops"].candidate - found["flops"].baseline == line.difference


def test_scores_within_windows_are_compared_with_scores() -> None:
    found = between("200m_s95", "inkling-2-mini")["attention"]
    assert found.line is not None
    assert (found.line.component, found.line.values) == ("attention scores", (found.baseline, found.candidate))


def test_the_end_that_is_known_is_shown_beside_one_that_is_not() -> None:
    there, back = between("200m_s95", "loopmoe-3b"), between("loopmoe-3b", "200m_s95")
    assert (there["flops"].baseline, there["flops"].candidate, there["flops"].ratio) == (1328578560, None, None)
    assert (back["kv"].baseline, back["kv"].candidate) == (None, 6144)
    assert there.verdict.outcome == back.verdict.outcome == "not determinable"


def test_another_context_is_that_of_both() -> None:
    other = between("200m_s95", "200m_s95_smelt", context=Context.causal(4096))
    assert other["attention"].deviation == Fraction(19, 80)
    assert other["flops"].deviation > between("200m_s95", "200m_s95_smelt")["flops"].deviation  # type: ignore[operator]


def test_a_row_without_geometry_names_what_is_missing() -> None:
    found = between("200m_s0", "200m_s0_smelt")
    assert found.verdict.outcome == "not determinable"
    for field in ("expert_intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        assert field in found.verdict.reason
    assert "hidden_size" not in found.verdict.reason
    assert "200m_s0 " not in found.verdict.reason


def test_a_head_counted_in_one_model_alone_compares_nothing() -> None:
    base = shipped()["nano_s85"].spec
    assert isinstance(base, ModelSpec)
    known = base.changed(vocab_size=512)
    found = audit(base, known, convention("megatron"))
    assert found["flops"].missing == "nano_s85 does not state vocab_size"
    assert found["params"].ratio is None
    assert found["kv"].ratio == 1
    assert found.verdict.outcome == "not determinable"
    assert audit(base, known, PAPER).verdict.is_matched


def test_a_drawn_number_of_passes_is_partly_matched_where_only_its_mean_is() -> None:
    base = shipped()["nano_s85"].spec
    assert isinstance(base, ModelSpec)
    sampled = {"sampled": {"distribution": "1 to 3", "most": 3}}
    looped = base.changed(name="drawn", layout="mid50x2", loop=sampled)
    equal = base.changed(name="equal", layout="mid50x2")
    found = audit(equal, looped, PAPER)
    assert found["flops"].ratio == 1
    assert found["flops"].verdict is not None
    assert found["flops"].verdict.outcome == "partly"
    assert found["params"].verdict is not None
    assert found["params"].verdict.is_matched
    assert found.verdict.outcome == "partly"
    assert found.drawn == {"drawn": "1 to 3"}


def test_a_tolerance_is_inclusive_and_a_step_time_is_held_to_that_of_flops() -> None:
    ends = shipped()["200m_s95"].spec, shipped()["200m_s95_smelt"].spec
    off = audit(*ends, PAPER)
    exact = Tolerance(*(off[name].deviation or Fraction(0) for name in ("flops", "params", "kv")))  # type: ignore[index]
    assert audit(*ends, PAPER, None, exact).verdict.is_matched
    tighter = Tolerance(exact.flops, exact.params, exact.kv - Fraction(1, 10**9))
    assert audit(*ends, PAPER, None, tighter).verdict.outcome == "partly"
    timed = audit(*ends, PAPER, None, exact, (Fraction(1), Fraction(2)))
    assert timed["step_time"].ratio == 2
    assert timed["step_time"].verdict is not None
    assert timed["step_time"].verdict.outcome == "not matched"
    assert timed.verdict.is_matched
