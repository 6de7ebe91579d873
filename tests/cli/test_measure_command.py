"""`count --measure`, and the measured line of `solve`: equal counts, injected differences, missing libraries."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from smelt_match.measure import formulas
from tests.cli.conftest import Cli, refused

COUNT = ("count", "nano_s85", "--measure", "--context", "9")
SOLVE = ("solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--no-study", "--context", "9")
CONFIGS = Path(__file__).parent.parent / "spec" / "configs"
EQUAL = "measured: built parameters and executed FLOPs equal the counts (difference 0)"


@pytest.fixture
def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FLOP formula that counts a pair of tokens too many."""
    right = formulas.pairs
    monkeypatch.setattr(formulas, "pairs", lambda *args: right(*args) + 1)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a library look uninstalled."""
    real = builtins.__import__

    def call(library: str) -> None:
        def importing(name: str, *args: Any, **options: Any) -> Any:
            if name.partition(".")[0] == library:
                raise ModuleNotFoundError(f"No module named {library!r}", name=library)
            return real(name, *args, **options)

        monkeypatch.delitem(sys.modules, "smelt_match.measure.measured", raising=False)  # imported anew
        monkeypatch.setattr(builtins, "__import__", importing)

    return call


def test_count_shows_what_was_built_and_run(cli: Cli) -> None:
    ran = cli(*COUNT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"{EQUAL}\n")
    assert "run on the meta device: one causal document of 9 tokens, c = 5; counted by convention 'paper'" in ran.out
    assert "KV elements of a token: counted 1,024, measured 1,024 (filled cache)" in ran.out


def test_several_models_get_a_line_each(cli: Cli) -> None:
    ran = cli("count", "nano", "--measure", "--context", "9")
    assert ran.code == 0
    assert ran.out.count(EQUAL) == 4


def test_json_carries_every_check(cli: Cli) -> None:
    result = json.loads(cli(*COUNT, "--format", "json").out)["results"][0]["measured"]
    assert {key: result[key] for key in result if key != "checks"} == {
        "difference": 0, "documents": [9], "mean_attended_context": "5", "convention": "paper", "reason": "",
    }  # fmt: skip
    assert {check["quantity"] for check in result["checks"]} == {
        "params_stored", "flops_forward", "flops_train", "kv_elements_per_token",
    }  # fmt: skip
    assert {check["method"] for check in result["checks"]} == {"built", "FlopCounterMode", "fvcore", "filled cache"}
    for check in result["checks"]:
        assert set(check) == {"component", "quantity", "method", "counted", "measured"}
        assert check["counted"] == check["measured"]


def test_csv_holds_one_table(cli: Cli) -> None:
    refused(cli(*COUNT, "--format", "csv"), "--measure: CSV holds one table")


@pytest.mark.usefixtures("off_by_one")
def test_a_difference_is_shown_and_ends_with_no(cli: Cli) -> None:
    ran = cli(*COUNT)
    assert ran.code == 1
    assert "measured: differs in attention scores, flops_forward: counted" in ran.out
    assert "error: nano_s85: attention scores, flops_forward: counted 184,320, measured 188,416" in ran.err
    assert "please report this as a bug" in ran.err


@pytest.mark.usefixtures("off_by_one")
def test_solve_shows_a_difference_too(cli: Cli) -> None:
    ran = cli(*SOLVE)
    assert ran.code == 1
    assert "  measured: differs in attention scores" in ran.out
    assert "error: nano_s85, mid50x2, " in ran.err or "error: nano_s85" in ran.err


def test_solve_measures_its_winning_rows_unless_told_not_to(cli: Cli) -> None:
    assert cli(*SOLVE).out.count(f"  {EQUAL}\n") == 2
    assert "measured" not in cli(*SOLVE, "--no-measure").out
    matches = json.loads(cli(*SOLVE, "--top", "2", "--format", "json").out)["matches"]
    assert [match["measured"]["difference"] for match in matches if match["rank"] == 1] == [0, 0]
    assert not any("measured" in match for match in matches if match["rank"] > 1)


@pytest.mark.parametrize("library", ["torch", "fvcore"])
def test_without_a_library_count_tells_the_install_line(cli: Cli, without: Any, library: str) -> None:
    without(library)
    ran = cli(*COUNT)
    assert ran.code == 3
    assert f"error: measuring: {library} is not installed\nhint: pip install 'smelt-match'\n" in ran.err
    assert ran.out.startswith("nano_s85: H 128")  # counting needs neither
    assert ran.out.endswith(f"not measured: measuring: {library} is not installed\n")


def test_without_torch_solve_answers_and_says_what_was_not_measured(cli: Cli, without: Any) -> None:
    without("torch")
    ran = cli(*SOLVE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("  not measured: measuring: torch is not installed\n") == 2


def test_without_transformers_a_model_that_only_it_builds_ends_with_the_install_line(cli: Cli, without: Any) -> None:
    without("transformers")
    ran = cli("count", CONFIGS / "deepseek-v2-lite.json", "--measure")
    assert ran.code == 3
    assert "transformers is not installed" in ran.err
    assert "hint: pip install 'smelt-match[hf]'" in ran.err
    assert ran.out.startswith("deepseek-v2-lite: H 2048")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["huginn-0125", "ouro-1.4b"])
def test_a_config_that_nobody_builds_is_counted_and_the_reason_is_short(cli: Cli, name: str) -> None:
    pytest.importorskip("transformers")
    ran = cli("count", CONFIGS / f"{name}.json", "--measure")
    assert ran.code == 2
    assert ran.out.startswith(f"{name}: H ")
    assert "transformers builds no causal language model from it: Unrecognized model identifier: " in ran.err
    assert "; and ours cannot be built: " in ran.err
    assert len(ran.err) < 500
    assert "Should contain" not in ran.err
    assert "cannot be built yet" in ran.out.splitlines()[-1]


def test_without_transformers_a_model_that_we_build_is_measured_by_us(cli: Cli, without: Any) -> None:
    without("transformers")
    ran = cli("count", CONFIGS / "qwen3-0.6b.json", "--measure", "--context", "9")
    assert ran.code == 0
    assert "(difference 0); building a model with transformers: transformers is not installed" in ran.out


@pytest.mark.filterwarnings("ignore")
def test_a_config_that_is_not_run_for_want_of_a_library_ends_with_the_install_line(cli: Cli, without: Any) -> None:
    pytest.importorskip("transformers")
    without("fvcore")
    ran = cli("count", CONFIGS / "qwen3-0.6b.json", "--measure", "--context", "9")
    assert ran.code == 3
    assert "measured in part: built parameters equal the count (difference 0); nothing was run: " in ran.out
    assert ran.err == "error: measuring: fvcore is not installed\nhint: pip install 'smelt-match'\n"


@pytest.mark.filterwarnings("ignore")
def test_an_imported_config_is_compared_with_the_class_of_transformers(cli: Cli) -> None:
    pytest.importorskip("transformers")
    ran = cli("count", CONFIGS / "deepseek-v2-lite.json", "--measure")
    assert ran.code == 0
    assert "counted 15,706,484,224, measured 15,706,484,224 (transformers)" in ran.out
    assert "measured in part: built parameters equal the count (difference 0); nothing was run: " in ran.out
