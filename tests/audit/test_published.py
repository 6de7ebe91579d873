"""The paper's Table 1 recomputed: which printed verdicts hold, and the arithmetic of those that do not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from smelt_match.audit.published import PairRule, PrintedRow, Span, Study, Ticks, studies, table
from smelt_match.budget.conventions import convention
from smelt_match.export.studies import agreement, study_lines
from smelt_match.units import percent

PAPER = convention("paper")


@cache
def rows() -> dict[str, Study]:
    return {study.row.work: study for study in studies(table("table1"), PAPER)}


def test_the_printed_ticks_are_those_of_the_paper() -> None:
    marks = {"matched": "y", "not matched": "n", "partly": "p"}
    printed = {
        study.row.work.split()[0]: "".join(marks[tick] for tick in study.row.printed.model_dump().values())
        for study in rows().values()
    }
    assert printed == {
        "Huginn": "nyn", "Ouro": "nyn", "Saunshi": "pnn", "Schwethelm": "yny", "Prairie": "nyn", "Lee": "yny",
        "LoopMoE": "yyn", "Gao": "pnn", "SMELT": "yyy",
    }  # fmt: skip


@pytest.mark.parametrize("work", ["Huginn", "Ouro", "Lee", "SMELT"])
def test_rows_that_agree_in_every_budget(work: str) -> None:
    study = rows()[work]
    assert study.audits
    assert all(study.agrees(name) for name in Ticks.model_fields)
    assert not study.spans_unlike
    assert not study_lines(study)


def test_all_twelve_sparse_pairs_of_the_paper_are_matched() -> None:
    study = rows()["SMELT"]
    assert len(study.audits) == 12
    assert all(one.verdict.is_matched for one in study.audits)


def test_a_loop_of_the_same_executed_depth_has_the_same_kv_cache() -> None:
    """Saunshi's iso-FLOP pairs: printed as unmatched, ratio 1."""
    study = rows()["Saunshi"]
    same_flops = [one for one in study.audits if one.baseline.name == "saunshi-24x1"]
    assert len(same_flops) == 5
    assert {one["kv"].ratio for one in same_flops} == {Fraction(1)}
    assert study.agrees("flops")
    assert study.agrees("kv") is False
    told = "\n".join(study_lines(study))
    assert "saunshi-middle: KV elements/token 98,304 and 98,304, ratio 1" in told
    assert "5 of 9 pairs are matched (5 of 5 at equal FLOPs, 0 of 4 at equal parameters), each 0 %" in told
    assert (
        "params: printed not matched, counted partly: 4 of 9 pairs are matched (0 of 5 at equal FLOPs, 4 of 4" in told
    )


def test_a_study_tells_its_footnote_and_a_span_that_only_some_layouts_have() -> None:
    study = rows()["Saunshi"]
    told = study_lines(study)
    assert told[0] == "Saunshi, footnote: matched-FLOPs comparison for the prefix-loop-suffix layout"
    assert study.spans_verdict == "partly"
    assert "some of the layouts have it" in told[-1]
    assert rows()["Huginn"].spans_verdict == rows()["SMELT"].spans_verdict == "agree"
    assert rows()["LoopMoE"].spans_verdict is None
    nothing = replace(study, row=study.row.model_copy(update={"spans": [Span(percent=50)]}))
    assert nothing.spans_verdict == "disagree"
    assert "no layout has it" in study_lines(nothing)[-1]


def test_an_adapter_at_every_pass_puts_eight_passes_over_the_tolerance() -> None:
    """Schwethelm at r = 8: 8 times 2·H² over twenty layers of 12·H² is 16/240 of the block FLOPs."""
    study = rows()["Schwethelm"]
    against = study.against("flops")
    assert {one.candidate.name.rpartition("-")[2] for one in against} == {"r8"}
    assert {one.flops_without_attention for one in against} == {Fraction(16, 240)}
    assert all(one["flops"].line.component == "injection" for one in against if one["flops"].line)  # type: ignore[union-attr]
    assert study.agrees("flops") is False
    assert study.agrees("params")
    assert study.agrees("kv")
    told = "\n".join(study_lines(study))
    assert "+6.67 % without attention scores" in told
    worst, least = (percent(one["flops"].deviation or Fraction(0)) for one in (against[0], against[-1]))
    assert f"11 of 33 pairs are not matched, {least} to {worst}; the furthest off {against[0].candidate.name}: " in told


def test_the_spans_of_footnote_c_belong_to_two_four_and_eight_passes() -> None:
    study = rows()["Schwethelm"]
    assert [(span.passes, span.percent) for span in study.spans] == [(2, 67), (4, 50), (8, 33)]
    assert [(span.passes, span.percent) for span in study.spans_unlike] == [(3, 50), (4, 33)]


def test_value_tables_decide_whether_small_parcae_models_have_the_same_parameters() -> None:
    study = rows()["Prairie (Parcae)"]
    against = study.against("params")
    assert [one.candidate.name for one in against] == ["parcae-140m", "parcae-370m"]
    assert all(set(study.otherwise(one, "params")) == {"torchtitan"} for one in against)
    told = "\n".join(study_lines(study))
    for tables in ("75,497,472", "201,326,592"):
        assert f"value tables ({tables} of each) not counted, as printed by convention torchtitan" in told


@pytest.mark.parametrize(("work", "field"), [("LoopMoE", "expert_intermediate_size"), ("Gao", "head_dim")])
def test_what_is_not_published_is_not_determinable_and_named(work: str, field: str) -> None:
    study = rows()[work]
    assert [study.agrees(name) for name in Ticks.model_fields] == [None] * 3
    assert field in "\n".join(study_lines(study))


def test_every_disagreement_is_explained_and_no_agreement_is() -> None:
    for study in rows().values():
        told = "\n".join(study_lines(study))
        for name in Ticks.model_fields:
            assert (f"{study.row.work}, {name}: printed" in told) == (study.agrees(name) is False)
    assert agreement(list(rows().values())) == (17, 21)


def test_a_row_whose_specs_do_not_ship_is_not_determinable() -> None:
    row = PrintedRow(
        work="nobody", architecture="dense", spans=[], printed=Ticks(flops="matched", params="matched", kv="matched"),
        pairs=[PairRule(candidate="no-such-*"), PairRule(candidate="200m_s0")],
    )  # fmt: skip
    printed = table("table1").model_copy(update={"rows": [row]})
    (study,) = studies(printed, PAPER)
    assert not study.audits
    assert study.absent == ("no spec named no-such-* ships", "200m_s0 names no baseline that ships")
    assert study.verdicts["kv"].outcome == "not determinable"
    assert all(study.agrees(name) is None for name in Ticks.model_fields)
