"""What a model has besides its blocks, and how far its backward pass goes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS, convention
from smelt_match.budget.count import control_of
from smelt_match.budget.ledger import ledger
from smelt_match.spec.family import countable, expand, shipped
from smelt_match.spec.model import ModelSpec
from tests.budget.test_ledger import _value, specs

CONFIGS = sorted((Path(__file__).parent.parent / "spec" / "configs").glob("*.json"))
RULES = st.sampled_from(sorted(CONVENTIONS)).map(convention)


def nano(**fields: Any) -> ModelSpec:
    return countable(shipped()["nano_s85"]).changed(vocab_size=500, **fields)


@given(specs().filter(lambda spec: not spec.visits.is_unlooped), RULES, st.integers(1, 4))
def test_a_visit_without_a_backward_pass_costs_a_third(spec: ModelSpec, rule: Any, backward: int) -> None:
    """Every row: 2 of 6 FLOPs are forward, and the scores split likewise; nothing else changes."""
    context, backward = Context.causal(64), min(backward, max(spec.visits.counts))
    whole, cut = ledger(spec, rule, context), ledger(spec.changed(backward_visits=backward), rule, context)
    for full, part in zip(whole.rows, cut.rows, strict=True):
        trained = min(full.visits, backward)
        share = Fraction(2 * full.visits + 4 * trained, 6 * full.visits)
        assert cut.flops(part) == whole.flops(full) * share
        assert (part.stored, part.active, part.executed, part.kv) == (full.stored, full.active, full.executed, full.kv)
    assert sum((cut.flops(row) for row in cut.rows), Fraction(0)) == cut.budget.flops


def test_a_backward_pass_over_all_visits_is_the_default() -> None:
    spec, context = nano(layout="full x3"), Context.causal(64)
    rule = convention("torchtitan")
    assert ledger(spec.changed(backward_visits=3), rule, context).budget == ledger(spec, rule, context).budget


def test_the_control_of_a_truncated_loop_is_unlooped() -> None:
    control = control_of(nano(layout="full x3", backward_visits=1))
    assert control.visits.is_unlooped
    assert control.backward_visits is None


def test_a_backward_depth_without_a_loop_is_refused() -> None:
    with pytest.raises(ValidationError, match="backward_visits is given, but the layout loops nothing"):
        nano(backward_visits=2)


def test_a_head_with_fewer_rows_and_a_bias_is_counted_as_it_is() -> None:
    context, rule = Context.causal(10), convention("torchtitan")
    plain = ledger(nano(), rule, context).budget
    spec = nano(head_vocab_size=480, output_head_bias=True)
    other = ledger(spec, rule, context).budget
    H = spec.hidden_size
    assert other.params - plain.params == 480 - 20 * H
    assert other.flops - plain.flops == 6 * (480 - 20 * H)
    assert ledger(spec, convention("paper"), context).budget == ledger(nano(), convention("paper"), context).budget
    with pytest.raises(ValidationError, match="a tied output head has the rows of the embedding"):
        nano(head_vocab_size=480, tie_word_embeddings=True)


def test_extras_of_blocks_run_at_each_visit_as_often_as_they_say() -> None:
    extra = {"name": "bank", "layers": "1", "params": 70, "executions": 3}
    spec, context = nano(layout="full x2", extras=[extra]), Context.causal(10)
    row = ledger(spec, convention("paper"), context).rows[-1]
    assert (row.stored, row.active, row.executed, row.matmul) == (70, 70, 3 * 2 * 70, 6 * 3 * 2 * 70)


def test_active_counts_of_a_loop_differ_by_meaning() -> None:
    counts = active_counts(nano(layout="full x2"))
    assert counts.executed > counts.one_traversal
    assert counts.with_embeddings == counts.one_traversal + 2 * 500 * nano().hidden_size
    assert active_counts(countable(shipped()["nano_s85"])).total is None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_formula_of_an_imported_model_is_what_is_counted(path: Path) -> None:
    spec = countable(expand(str(path))[0])
    for extra in spec.extras:
        assert _value(extra.formula) == extra.params
    book = ledger(spec, convention("torchtitan"), Context.causal(4096))
    for row in book.rows:
        text = row.written(numbers=True)
        if row.component in ("attention scores", "KV cache", "experts", "expert biases") or ", window" in row.component:
            continue
        each = _value(text.removesuffix(", tied"))
        assert (row.stored or row.active) % each == 0, row
