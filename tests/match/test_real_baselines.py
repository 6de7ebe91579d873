"""Loops matched to published models, read from their configs: what the solver keeps, what it refuses, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt_match.spec.family import expand
from smelt_match.spec.model import ModelSpec
from tests.conftest import Ran

CONFIGS = Path(__file__).parent.parent / "spec" / "configs"
MOES = ["mixtral-8x7b-v0.1", "qwen3-30b-a3b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b", "glm-4.5-air", "granite-3.0-1b-a400m",
        "dbrx-base"]  # fmt: skip
SIZES = ("hidden_size", "num_experts", "expert_intermediate_size", "head_dim", "num_attention_heads")


def spec_of(path: Path) -> ModelSpec:
    spec = expand(str(path))[0].spec
    assert isinstance(spec, ModelSpec)
    return spec


# The verifier is plain Python: coarse steps keep the search of a large model short.
COARSE = """
name: coarse
envelope: 2
hidden_size: {step: 64, min: "0.25x", max: "2x"}
num_experts: {step: 4, min: 4, max: "4x"}
expert_intermediate_size: {step: 32, min: "0.125x", max: "4x"}
head_dim: {step: 8, min: "0.125x", max: "2x"}
num_attention_heads: {step: 1, min: 1, max: "4x"}
num_key_value_heads: {values: [1, 2, 4, 8, 16]}
"""


def solved(cli: Callable[..., Ran], path: Path, out: Path, *options: str) -> dict[str, Any]:
    """The document of a solve whose certificate a second program has confirmed."""
    grid = out.with_name("coarse.yaml")
    grid.write_text(COARSE, encoding="utf-8")
    ran = cli(
        "solve", "--baseline", path, "--loop", "mid50x2", "--no-study", "--no-measure", "--grid", grid, *options,
        "-f", "json", "-o", out,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    checked = cli("verify", out)
    assert checked.code == 0, checked.out + checked.err
    document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("name", MOES)
def test_a_published_moe_is_matched_and_the_match_is_verified(
    name: str, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    document = solved(cli, CONFIGS / f"{name}.json", tmp_path / "out.json")
    uniform = next(match for match in document["matches"] if match["policy"] == "uniform")
    assert abs(uniform["deviation"]["flops"]) < 0.02
    assert abs(uniform["deviation"]["params"]) < 0.02


@pytest.mark.parametrize("name", ["qwen1.5-moe-a2.7b", "glm-4.5-air", "granite-3.0-1b-a400m"])
@pytest.mark.parametrize("convention", ["torchtitan", "megatron"])
def test_other_conventions_are_verified_too(
    name: str, convention: str, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    solved(cli, CONFIGS / f"{name}.json", tmp_path / "out.json", "--convention", convention)


@pytest.mark.parametrize("convention", ["paper", "6n", "torchtitan"])
def test_layer_norm_and_a_head_with_a_bias_are_held_fixed(
    convention: str, cli: Callable[..., Ran], tmp_path: Path
) -> None:
    config = json.loads((CONFIGS / "phi-3.5-moe.json").read_text(encoding="utf-8")) | {"sliding_window": None}
    path = tmp_path / "phi.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert spec_of(path).output_head_bias
    solved(cli, path, tmp_path / "out.json", "--convention", convention, "--include-head")


@pytest.mark.parametrize("name", MOES)
def test_all_but_the_searched_sizes_stays_the_baselines(name: str, ask: Callable[..., Any]) -> None:
    from smelt_match.match.answer import answer

    question = ask(str(CONFIGS / f"{name}.json"), "mid50x2")
    found = answer(question).solved[0]
    assert found.solution is not None
    spec = found.solution.problem.spec_at(found.solution.ranked[0], "looped")
    free = {*SIZES, "name", "source", "notes", "matches", "layout", "loop_num_attention_heads",
            "loop_num_key_value_heads"}  # fmt: skip
    assert spec.model_dump(exclude=free) == question.baseline.model_dump(exclude=free)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("deepseek-v3", "has latent attention (MLA), which can be counted but not solved for yet"),
        ("gpt-oss-20b", "has sliding windows, which can be counted but not solved for yet"),
        ("llama-3.1-8b", "a dense model has no experts"),
        ("ouro-1.4b", "is itself looped"),
        ("inkling-2-mini", "is itself looped"),
    ],
)
def test_what_cannot_be_solved_for_is_refused_with_the_reason(name: str, told: str, cli: Callable[..., Ran]) -> None:
    ran = cli("solve", "--baseline", CONFIGS / f"{name}.json", "--loop", "mid50x2")
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_a_loop_over_a_dense_layer_is_refused(cli: Callable[..., Ran]) -> None:
    ran = cli("solve", "--baseline", CONFIGS / "glm-4.5-air.json", "--loop", "full x2")
    assert ran.code == 2
    assert "layer 1 is dense" in ran.err


def test_a_dense_baseline_is_read_as_experts_on_request(cli: Callable[..., Ran], tmp_path: Path) -> None:
    path = CONFIGS / "llama-3.1-8b.json"
    assert "--experts-per-token K" in cli("solve", "--baseline", path, "--loop", "mid50x2").err
    document = solved(cli, path, tmp_path / "out.json", "--experts-per-token", "8")
    config = document["baseline"]["config"]
    assert (config["num_experts"], config["experts_per_token"], config["expert_intermediate_size"]) == (8, 8, 1792)
    assert document["baseline"]["name"] == "llama-3.1-8b-as-8-experts"
    assert document["baseline"]["budget"]["params_total"] == 8_030_261_248 - 2 * 128_256 * 4096 + 32 * 4096 * 8
    assert "the baseline became an MoE" in document["notes"][0]


def test_the_words_under_the_table_say_that_it_became_an_moe(cli: Callable[..., Ran]) -> None:
    path = CONFIGS / "gpt-neox-20b.json"
    ran = cli("solve", "--baseline", path, "--loop", "mid50x2", "--no-study", "--no-measure", "--experts-per-token", 8)
    assert ran.code == 0
    assert "gpt-neox-20b is dense: its feed-forward of width 24,576 is read as 8 experts of width 3,072" in ran.out


@pytest.mark.parametrize(
    ("name", "k", "told"),
    [
        ("llama-3.1-8b", 5, "--experts-per-token 5: does not divide the feed-forward width 14,336"),
        ("mixtral-8x7b-v0.1", 2, "--experts-per-token 2: mixtral-8x7b-v0.1 has experts (2 of 8)"),
        ("gemma-2-9b", 2, "has sliding windows"),
        ("llama-3.1-8b", 0, "experts-per-token"),
    ],
)
def test_experts_that_cannot_be_made_are_refused(name: str, k: int, told: str, cli: Callable[..., Ran]) -> None:
    ran = cli("solve", "--baseline", CONFIGS / f"{name}.json", "--loop", "mid50x2", "--experts-per-token", k)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_floors_of_a_dense_model_need_no_experts(cli: Callable[..., Ran]) -> None:
    ran = cli("layouts", "--baseline", CONFIGS / "llama-3.1-8b.json")
    assert ran.code == 0
    assert ran.out.splitlines()[2].startswith("full x2")


def test_layouts_over_dense_layers_are_left_out_of_the_list(cli: Callable[..., Ran]) -> None:
    ran = cli("layouts", "--baseline", CONFIGS / "glm-4.5-air.json", "--limit", 999, "-f", "csv")
    assert ran.code == 0
    assert "mid50x2" in ran.out
    assert "full" not in ran.out


def test_a_part_that_no_solver_holds_is_told_before_the_experts_that_would_not_help(cli: Callable[..., Ran]) -> None:
    ran = cli("solve", "--baseline", CONFIGS / "gemma-2-9b.json", "--loop", "mid50x2")
    assert ran.code == 2
    assert "has sliding windows" in ran.err
    assert "--experts-per-token" not in ran.err


def test_a_match_beyond_the_papers_tolerances_is_a_warning(cli: Callable[..., Ran]) -> None:
    plain = ("solve", "-l", "mid50x2", "--no-study", "--no-measure", "-b")
    far = cli(*plain, CONFIGS / "llama-3.1-8b.json", "--experts-per-token", 1)
    assert far.code == 0
    assert "warning: llama-3.1-8b-as-1-experts, uniform: the closest match is beyond the paper's tolerances" in far.err
    assert "warning" not in cli(*plain, "200m_s95").err
