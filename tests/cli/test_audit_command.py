"""``smelt-match audit`` and ``smelt-match card``: whole outputs, exit codes, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from tests.cli.conftest import Cli, Writer, refused
from tests.cli.test_fuzz import ends_well, fewer

PAIR = ("audit", "200m_s95", "200m_s95_smelt")
CONFIGS = Path(__file__).parent.parent / "spec" / "configs"
SURFACE = "  - {name: NAME, E: 1.0, A: 1.0e+3, K: 2.0, a: 0.37, b: 0.1, c: 0.5}\n"
SHOWN = [
    (*PAIR,),
    (*PAIR, "--gain", "0.0218"),
    (*PAIR, "--gain", "-0.01", "--format", "md"),
    (*PAIR, "--format", "tex"),
    (*PAIR, "--format", "csv"),
    (*PAIR, "--all-conventions", "--vocab-size", "150000"),
    (*PAIR, "--all-conventions", "--format", "csv"),
    (*PAIR, "--context", "4096", "--step-time", "0.41,0.43", "--tolerance", "2%"),
    ("audit", "200m_s0", "200m_s0_smelt"),
    ("audit", "loopmoe-3b-vanilla", "loopmoe-3b"),
    ("audit", "mor-360m-vanilla", "mor-360m-expert3"),
    ("audit", "saunshi-24x1", "saunshi-middle"),
    ("audit", "table1"),
    ("audit", "table1", "--format", "md"),
    ("audit", "table1", "--format", "csv"),
    ("card", "200m_s95_smelt"),
    ("card", "200m_s95_smelt", "--format", "tex"),
    ("card", "nano_s85", "--format", "json", "--vocab-size", "512"),
    ("card", "mor-360m-expert3", "--format", "csv"),
    ("card", "parcae-140m"),
]


@pytest.mark.parametrize("args", SHOWN, ids=" ".join)
def test_whole_outputs(cli: Cli, snapshot: SnapshotAssertion, args: tuple[str, ...]) -> None:
    ran = cli(*args)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_json_has_the_exact_ratios_and_the_price(cli: Cli) -> None:
    document = json.loads(cli(*PAIR, "--gain", "0.0218", "--all-conventions", "--format", "json").out)
    by = {row["budget"]: row for row in document["budgets"]}
    assert document["schema_version"] == 1
    assert by["kv"]["ratio_exact"] == "33/32"
    assert by["kv"]["kv_bytes_per_token"] == [12288, 12672]
    assert by["kv"]["kv_dtype"] == "bf16"
    assert by["attention"]["ratio_exact"] == "99/80"
    assert by["attention"]["verdict"] is None
    assert document["verdict"] == {"outcome": "matched", "reason": ""}
    assert document["convention"]["name"] == "paper"
    assert document["mismatch"]["surface"] == "baseline"
    assert document["mismatch"]["explained"]["equal_sparsity"]["share"] == pytest.approx(0.175, abs=5e-4)
    assert [one["convention"]["name"] for one in document["conventions"]] == [
        "paper", "megatron", "torchtitan", "deepseek", "6n",
    ]  # fmt: skip
    assert set(document["over_conventions"]) == {"flops", "params", "kv"}


def test_json_of_the_table_has_every_pair(cli: Cli) -> None:
    document = json.loads(cli("audit", "table1", "--format", "json").out)
    rows = {row["work"]: row for row in document["rows"]}
    assert document["agreement"] == {"agreed": 17, "countable": 21}
    assert rows["Schwethelm"]["budgets"]["flops"]["agrees"] is False
    assert rows["Schwethelm"]["spans"]["agrees"] is False
    assert rows["LoopMoE"]["budgets"]["kv"]["agrees"] is None
    assert len(rows["SMELT"]["pairs"]) == 12


def test_required_budgets_decide_the_exit_code_after_the_answer(cli: Cli) -> None:
    assert cli(*PAIR, "--require", "flops,params,kv").code == 0
    ran = cli(*PAIR, "--require", "flops,kv", "--tolerance", "4%,1%,3%")
    assert ran.code == 1
    assert "KV elements/token" in ran.out
    assert "kv by convention 'paper': not matched (+3.13 %, outside 3.00 %)" in ran.err
    assert "flops" not in ran.err
    assert cli(*PAIR, "--tolerance", "0").code == 0
    assert cli("audit", "200m_s0", "200m_s0_smelt", "--require", "kv").code == 1
    flipped = cli(*PAIR, "--require", "flops", "--all-conventions", "--vocab-size", "150000")
    assert flipped.code == 1
    assert "by convention 'paper'" not in flipped.err
    assert "by convention 'deepseek'" in flipped.err


def test_ends_may_be_files_and_configs(cli: Cli, spec: Writer) -> None:
    Path("llama").mkdir()
    shutil.copy(CONFIGS / "llama-3.1-8b.json", "llama/config.json")
    ran = cli("audit", spec(), "llama", "--context", "2048", "--format", "json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["baseline"]["name"] == "mine"
    assert document["convention"]["mean_attended_context"] == "2049/2"
    same = json.loads(cli("audit", "llama/config.json", "llama", "--format", "json").out)
    assert {row["ratio_exact"] for row in same["budgets"]} == {"1/1"}


def test_a_surface_of_ones_own_prices_the_mismatch(cli: Cli) -> None:
    Path("mine.yaml").write_text("surfaces:\n" + SURFACE.replace("NAME", "one"))
    Path("two.yaml").write_text("surfaces:\n" + SURFACE.replace("NAME", "one") + SURFACE.replace("NAME", "other"))
    alone = cli(*PAIR, "--surface", "mine.yaml", "--tokens", "1e9")
    assert alone.code == 0
    assert "surface 'one' at 1e+09 training tokens" in alone.out
    assert "surface 'one' does not state the mean_attended_context of its F: priced at the audit's, 392" in alone.err
    assert "no rounding, since none is stated, and without the RMSE of the fits, in nats: not stated" in alone.out
    assert cli(*PAIR, "--surface", "two.yaml:other", "--tokens", "1e9").code == 0
    assert "surface 'smelt' at 2.155e+11" in cli(*PAIR, "--surface", "smelt").out
    outside = cli(*PAIR, "--tokens", "1e13", "--gain", "0.1")
    assert outside.code == 0
    assert "not estimable by surface 'baseline': 1e+13 training tokens are outside 2e+10 to 2.155e+11" in outside.out
    refused(cli(*PAIR, "--surface", "mine.yaml"), "--tokens is wanted")
    refused(cli(*PAIR, "--surface", "two.yaml", "--tokens", "1e9"), "holds 2 surfaces", "FILE:NAME")
    refused(cli(*PAIR, "--surface", "two.yaml:third", "--tokens", "1e9"), "'third' is not a surface")
    refused(cli(*PAIR, "--surface", "none.yaml"), "none.yaml: no such surface file")
    refused(cli(*PAIR, "--surface", "basline"), "unknown surface 'basline'", "did you mean baseline?")


def test_a_mismatch_is_priced_at_the_context_of_the_surface(cli: Cli) -> None:
    """The paper's F is counted at c = 392: another context moves the budgets, and not the price."""
    prices = [json.loads(cli(*PAIR, *options, "--format", "json").out)["mismatch"]
              for options in ((), ("--context", "8192"), ("--mean-context", "100"))]  # fmt: skip
    assert prices[0] == prices[1] == prices[2]
    assert prices[0]["mean_attended_context"] == "392/1"
    assert prices[0]["rmse_nats"] == {"baseline": 0.00554, "smelt": 0.00952}
    shown = cli(*PAIR, "--context", "8192")
    assert shown.err == ""
    assert "F by convention 'paper' at a mean attended context of 392" in shown.out


@pytest.mark.parametrize("ends", [("200m_s95", "loopmoe-3b"), ("lee-d512-base", "lee-d512-looped")])
@pytest.mark.parametrize("shown", ["table", "md", "tex"])
def test_a_gain_that_nothing_explains_is_told_all_the_same(cli: Cli, ends: tuple[str, str], shown: str) -> None:
    out = cli("audit", *ends, "--gain", "0.02", "--format", shown).out
    assert "mismatch in nats: not estimable" in out
    assert "the observed gain of +0.02000 nats: nothing to subtract, since" in out
    document = json.loads(cli("audit", *ends, "--gain", "0.02", "--format", "json").out)["mismatch"]
    assert (document["estimable"], document["observed_gain_nats"]) == (False, 0.02)
    assert document["not_estimable"]


def test_the_known_end_is_shown_beside_one_that_is_not_determinable(cli: Cli) -> None:
    found = json.loads(cli("audit", "200m_s95", "loopmoe-3b", "--format", "json").out)
    assert [(row["baseline"], row["candidate"]) for row in found["budgets"]] == [
        (1328578560, None), (3872226560, None), (6144, None),
    ]  # fmt: skip
    assert "1,328,578,560          –" in cli("audit", "200m_s95", "loopmoe-3b").out


def test_a_step_time_that_is_not_matched_stands_in_the_headline(cli: Cli) -> None:
    first = cli(*PAIR, "--step-time", "1.0,1.1").out.splitlines()[0]
    assert first == "200m_s95_smelt against 200m_s95: matched; step time: not matched (+10.00 %, outside 4.00 %)"


def test_absurd_surfaces_are_refused_or_price_nothing(cli: Cli) -> None:
    Path("mine.yaml").write_text("surfaces:\n" + SURFACE.replace("a: 0.37", "a: 1000"))
    refused(cli(*PAIR, "--surface", "mine.yaml", "--tokens", "1e9"), "NAME: a is 1000, from 0.001 to 10 is plausible")
    Path("mine.yaml").write_text("surfaces:\n" + SURFACE.replace("A: 1.0e+3", "A: 1.0e+99"))
    ran = cli(*PAIR, "--surface", "mine.yaml", "--tokens", "1e9")
    assert (ran.code, "capacity term is e^" in ran.out) == (0, True)


def test_footnotes_of_the_table_are_in_every_format(cli: Cli) -> None:
    for shown in ("table", "md", "tex", "csv", "json"):
        out = cli("audit", "table1", "--format", shown).out
        assert "matches wall-clock training time rather than FLOPs per token" in out
        assert "matched-FLOPs comparison for the prefix-loop-suffix layout" in out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("audit", "200m_s95"), "a second model is wanted"),
        (("audit", "200m_s95", "200m_s9"), "unknown spec '200m_s9'"),
        (("audit", "200m_*", "200m_s95"), "name one"),
        (("audit", "smelt", "200m_s95"), "stands for 16 models"),
        (("audit", "table1", "200m_s95"), "audit table1: the table stands alone"),
        (("audit", "200m_s95", "table1"), "audit table1: the table stands alone"),
        ((*PAIR, "--surface", ""), "--surface: unknown surface ''"),
        (("audit", "table1", "--gain", "0.1", "--require", "kv"), "--require, --gain: belongs to an audit"),
        ((*PAIR, "--tolerance", "many"), "--tolerance: 'many' is not a number"),
        ((*PAIR, "--tolerance", "1%,2%"), "one number, or three"),
        ((*PAIR, "--tolerance", "-1%"), "at least 0"),
        ((*PAIR, "--require", "flops,speed"), "--require 'speed' is not one of"),
        ((*PAIR, "--gain", "nan"), "--gain: 'nan' is not a number"),
        ((*PAIR, "--gain", "inf"), "--gain: 'inf' is not a number"),
        ((*PAIR, "--gain", "0"), "--gain 0"),
        ((*PAIR, "--gain", "1e999"), "--gain 1e999"),
        ((*PAIR, "--tokens", "-5"), "--tokens -5"),
        ((*PAIR, "--tokens", "1e300"), "--tokens 1e300"),
        ((*PAIR, "--step-time", "1"), "two numbers"),
        ((*PAIR, "--step-time", "1,0"), "greater than 0"),
        ((*PAIR, "--step-time", "1,x"), "'x' is not a number"),
        ((*PAIR, "--gain", "0.1", "--format", "csv"), "CSV holds one table"),
        ((*PAIR, "--include-head"), "--include-head needs vocab_size"),
        ((*PAIR, "--convention", "flops"), "unknown convention"),
        ((*PAIR, "--format", "pdf"), "--format 'pdf'"),
        (("card",), "name a model"),
        (("card", "200m_s95", "--schema"), "name a model"),
        (("card", "200m_s0_smelt"), "cannot be counted"),
        (("card", "loopmoe-3b"), "not determinable from what is published"),
        (("card", "200m_*"), "name one"),
        (("card", "200m_s95", "--kv-dtype", "bf8"), "--kv-dtype 'bf8' is not one of"),
        (("card", "200m_s95", "--page-tokens", "0"), "--page-tokens"),
    ],
)  # fmt: skip
def test_bad_input_is_told(cli: Cli, args: tuple[str, ...], told: str) -> None:
    refused(cli(*args), told)


def test_windows_need_lengths_that_both_are_counted_at(cli: Cli) -> None:
    Path("gemma").mkdir()
    shutil.copy(CONFIGS / "gemma-3-1b.json", "gemma/config.json")
    shown = cli("audit", "200m_s95", "gemma", "--mean-context", "392").out
    assert "for sliding windows taken as one causal document of 783 tokens" in shown
    unequal = ("audit", "200m_s95", "gemma", "--mean-context", "1000/3")
    refused(cli(*unequal), "needs document lengths", "--context N or --lengths FILE")
    assert cli("audit", "200m_s95", "gemma", "--context", "4096").code == 0


def test_a_longer_context_for_the_whole_table_is_named_and_moves_verdicts(cli: Cli) -> None:
    """The paper matches FLOPs at its own document length: at 4,096 tokens its attention weighs more."""
    ran = cli("audit", "table1", "--context", "4096")
    assert ran.code == 0
    assert "each pair in one causal document of 4,096 tokens" in ran.out
    assert "SMELT, flops: printed matched, counted partly" in ran.out


@fewer
@given(
    st.sampled_from(["--gain", "--tokens", "--tolerance", "--step-time", "--surface", "--require", "--mean-context"]),
    st.text(max_size=12) | st.from_regex(r"-?[0-9.,e%/:]{1,12}", fullmatch=True) | st.sampled_from(["1e5", "/", ".:x"]),
)
def test_whatever_an_option_holds_the_audit_ends_well(option: str, text: str) -> None:
    ends_well("audit", "nano_s85", "nano_s85", f"{option}={text}")


def test_an_existing_file_is_kept_without_force(cli: Cli) -> None:
    Path("kept.md").write_text("kept")
    refused(cli("card", "200m_s95", "-o", "kept.md"), "exists already")
    refused(cli(*PAIR, "-o", "kept.md"), "exists already")
    assert Path("kept.md").read_text() == "kept"
    assert cli("card", "200m_s95", "-o", "kept.md", "--force").code == 0
