"""The shapes of JSON that other programs rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Cli

CONFIG = {
    "hidden_size",
    "num_layers",
    "num_experts",
    "experts_per_token",
    "expert_intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "loop_num_attention_heads",
    "loop_num_key_value_heads",
}
BUDGET = {
    "flops_train_per_token",
    "flops_attention_train_per_token",
    "params_total",
    "params_active",
    "kv_elements_per_token",
}
SOLVE = ("solve", "--loop", "mid50x2", "--format", "json", "--trials", "5", "--no-measure")
PLAIN = ("solve", "--loop", "mid50x2", "--format", "json", "--no-measure")


def integers(values: dict[str, Any], keys: set[str]) -> None:
    assert set(values) == keys
    assert all(type(value) is int for value in values.values())


def shape(document: dict[str, Any]) -> None:
    """A solve document has the promised keys and kinds."""
    assert document["schema_version"] == 1
    assert list(document)[:4] == ["schema_version", "baseline", "layout", "convention"]
    assert {"floors", "matches", "published", "certificate", "study"} <= set(document)
    assert isinstance(document["baseline"]["name"], str)
    integers(document["baseline"]["config"], CONFIG)
    integers(document["baseline"]["budget"], BUDGET)
    assert document["layout"]["text"] == "mid50x2"
    assert all(type(block) is int for block in document["layout"]["visits"])
    assert set(document["floors"]["kv"]) == {"uniform", "split"}
    for match in document["matches"]:
        assert {"policy", "rank", "config", "budget", "deviation"} <= set(match)
        assert match["policy"] in ("uniform", "split")
        assert type(match["rank"]) is int
        integers(match["config"], CONFIG)
        integers(match["budget"], BUDGET)
        assert set(match["deviation"]) == {"flops", "params", "kv", "attention"}
        assert all(type(value) is float for value in match["deviation"].values())
    certificate = document["certificate"]
    assert set(certificate) == {"formula_version", "policies"}
    assert set(certificate["policies"]) == {"uniform", "split"}


def test_solve_tells_baseline_layout_convention_floors_and_matches(cli: Cli) -> None:
    document = json.loads(cli(*SOLVE, "--baseline", "200m_s95").out)
    shape(document)
    assert document["baseline"]["name"] == "200m_s95"
    assert document["layout"]["visits"] == [*range(9), *range(3, 12)]
    assert document["convention"]["name"] == "paper"
    assert document["convention"]["mean_attended_context"] == "392/1"
    assert document["floors"]["kv"] == {"uniform": 0.03125, "split": 0.0}
    assert [(match["policy"], match["rank"]) for match in document["matches"]] == [("uniform", 1), ("split", 1)]
    assert document["published"]["name"] == "200m_s95_smelt"
    integers(document["published"]["config"], CONFIG)
    assert document["study"]["trials"] == 5


def test_every_deviation_follows_from_the_budgets(cli: Cli) -> None:
    document = json.loads(cli(*PLAIN, "--baseline", "200m_s95", "--no-study").out)
    theirs = document["baseline"]["budget"]
    keys = {"params": "params_total", "kv": "kv_elements_per_token", "flops": "flops_train_per_token"}
    for match in document["matches"]:
        for name, key in keys.items():
            assert match["deviation"][name] == pytest.approx(match["budget"][key] / theirs[key] - 1, abs=1e-9)


def test_ranks_count_up_within_a_policy(cli: Cli) -> None:
    document = json.loads(cli(*PLAIN, "--baseline", "nano_s85", "--no-study", "--top", "3", "--match", "flops,kv").out)
    shape(document)
    ranks = [match["rank"] for match in document["matches"] if match["policy"] == "uniform"]
    assert ranks == list(range(1, len(ranks) + 1))
    assert len(ranks) == 3


def test_a_row_that_the_paper_does_not_print_is_null(cli: Cli) -> None:
    assert json.loads(cli(*PLAIN, "--baseline", "nano_s85", "--no-study").out)["published"] is None
    args = ("solve", "--baseline", "200m_s95", "--loop", "full x2", "--format", "json", "--no-study", "--no-measure")
    assert json.loads(cli(*args).out)["published"] is None


def test_a_published_row_that_cannot_be_counted_has_no_budget(cli: Cli) -> None:
    published = json.loads(cli(*PLAIN, "--baseline", "200m_s0", "--no-study").out)["published"]
    assert published["name"] == "200m_s0_smelt"
    assert published["budget"] is None
    assert published["deviation"] is None
    assert published["not_decodable"]


def test_a_skipped_study_is_null(cli: Cli) -> None:
    assert json.loads(cli(*PLAIN, "--baseline", "nano_s85", "--no-study").out)["study"] is None


def test_a_family_gives_a_result_for_each_baseline(cli: Cli) -> None:
    document = json.loads(cli(*PLAIN, "--baseline", "smelt", "--no-study").out)
    assert set(document) == {"schema_version", "results"}
    assert len(document["results"]) == 16
    assert len({result["baseline"]["name"] for result in document["results"]}) == 16
    for result in document["results"]:
        shape(result)


def test_without_a_match_the_reason_is_told(cli: Cli) -> None:
    ran = cli(*PLAIN, "--baseline", "nano_s85", "--no-study", "--tolerance", "0.01%")
    assert ran.code == 1
    document = json.loads(ran.out)
    shape(document)
    assert document["matches"] == []
    entries = document["certificate"]["policies"].values()
    assert [(entry["optimum"], entry["points_within_rung"]) for entry in entries] == [(None, 0)] * 2
    assert "the KV floor is +3.13 %" in document["unavailable"]["uniform"]


@pytest.mark.parametrize(
    ("args", "key", "rows"),
    [
        (("count", "nano_s85"), "results", 1),
        (("count", "nano", "--convention", "all"), "results", 20),
        (("specs", "list", "nano"), "specs", 4),
        (("grids",), "grids", 6),
        (("layouts", "-b", "nano_s85", "--max-count", "2"), "layouts", 8),
    ],
)
def test_every_list_has_a_schema_version_and_its_rows(cli: Cli, args: tuple[str, ...], key: str, rows: int) -> None:
    document = json.loads(cli(*args, "--format", "json").out)
    assert document["schema_version"] == 1
    assert len(document[key]) == rows


@pytest.mark.parametrize(
    "args",
    [
        (*SOLVE, "--baseline", "200m_s95"),
        (*SOLVE, "--baseline", "nano_s85", "--front", "--free-kv-heads"),
        ("count", "200m_*", "--convention", "all", "--format", "json"),
        ("layouts", "-b", "200m_s95", "--depths", "11-12", "--format", "json"),
    ],
)
def test_the_same_command_gives_the_same_bytes(cli: Cli, args: tuple[str, ...]) -> None:
    first, second = cli(*args), cli(*args)
    assert first.code == 0
    assert first.out
    assert first == second
