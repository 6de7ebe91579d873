"""The budget card: its numbers are the ledger's, and every card follows the published schema."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt_match.audit.card import Card, card
from smelt_match.budget.context import Context
from smelt_match.export.carded import card_text
from smelt_match.export.table import Format
from smelt_match.spec.family import shipped
from smelt_match.spec.huggingface.reader import read_config
from smelt_match.spec.model import ModelSpec

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "card.schema.json").read_text(encoding="utf-8"))
MODELS = {name: entry.spec for name, entry in shipped().items() if isinstance(entry.spec, ModelSpec)}


def plain(spec: ModelSpec, **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(card(spec, **options).model_dump_json())
    return document


def test_the_published_schema_is_that_of_the_code_and_is_valid() -> None:
    assert Card.json_schema() == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_card_of_every_shipped_spec_follows_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for name, spec in MODELS.items():
        assert not list(validator.iter_errors(plain(spec))), name


def test_the_schema_refuses_what_is_not_a_card() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    sound = plain(MODELS["200m_s95"])
    for change in ({"schema_version": 2}, {"kv_dtype": "int3"}, {"surprise": 1}, {"name": 3}):
        assert list(validator.iter_errors(sound | change)), change
    assert list(validator.iter_errors({key: value for key, value in sound.items() if key != "params"}))


def test_a_card_carries_the_figures_of_the_paper() -> None:
    found = card(MODELS["200m_s95_smelt"])
    assert found.params.params_active_one_traversal == pytest.approx(0.142e9, abs=5e5)
    assert found.params.params_total == pytest.approx(3.89e9, abs=5e6)
    assert found.flops[0].convention == "paper"
    assert found.flops[0].flops_train_per_token == 1366751232
    assert found.layout.looped_layers == "4-9"
    assert (found.layout.num_layers, found.layout.executed_layers) == (12, 18)
    assert found.params.params_total_with_embeddings is None


def test_a_cache_is_told_by_policy_in_bytes_that_are_used_and_allocated() -> None:
    each, last = card(MODELS["200m_s95_smelt"]).kv_cache
    assert (each.policy, each.own, each.slots, each.kv_elements_per_token) == ("visit", True, 18, 6336)
    assert (last.policy, last.own, last.slots, last.kv_elements_per_token) == ("last", False, 12, 4224)
    assert each.kv_bytes_per_token == 2 * 6336
    assert (each.kv_bytes_logical, each.kv_bytes_allocated) == (783 * 12672, 784 * 12672)
    (only,) = card(MODELS["200m_s95"]).kv_cache
    assert only.slots == 12


def test_pages_are_allocated_whole_for_each_document() -> None:
    lengths = Context.documents([1, 16, 17], None, "three documents")
    (cache,) = card(MODELS["200m_s95"], lengths, page_tokens=16, dtype="fp8").kv_cache
    assert Fraction(cache.kv_bytes_logical, cache.kv_bytes_per_token) == 34
    assert Fraction(cache.kv_bytes_allocated, cache.kv_bytes_per_token) == 16 + 16 + 32
    assert cache.kv_bytes_per_token == cache.kv_elements_per_token
    (exact,) = card(MODELS["200m_s95"], lengths, page_tokens=1).kv_cache
    assert exact.kv_bytes_logical == exact.kv_bytes_allocated


def test_a_vocabulary_gives_the_counts_with_embeddings_and_the_head() -> None:
    found = card(MODELS["nano_s85"].changed(vocab_size=512))
    assert found.params.params_total_with_embeddings == found.params.params_total + 2 * 512 * 128
    assert {line.convention: line.output_head for line in found.flops}["megatron"] == "counted"
    bare = card(MODELS["nano_s85"])
    assert {line.output_head for line in bare.flops} == {"not counted", "unknown vocabulary"}


def test_a_model_with_another_policy_shows_it_beside_the_two_of_any_engine() -> None:
    name = "mor-360m-expert3-kv-share"
    policies = [(cache.policy, cache.own) for cache in card(MODELS[name]).kv_cache]
    assert policies[0][1]
    assert [own for _, own in policies].count(True) == 1
    assert {policy for policy, _ in policies} >= {"visit", "last"}


def test_rows_of_parameters_add_up_and_name_value_tables() -> None:
    for name, spec in MODELS.items():
        params = card(spec).params
        if params.params_embedding_and_head is None:
            assert params.params_total_with_embeddings is None, name
            continue
        parts = params.params_total + (params.params_value_tables or 0) + params.params_embedding_and_head
        assert parts == params.params_total_with_embeddings, name
        assert (params.params_value_tables is None) == (spec.value_embedding_layers is None), name
    parcae = card(MODELS["parcae-140m"]).params
    assert parcae.params_value_tables == 3 * 32768 * 768 == 75_497_472
    assert parcae.params_embedding_and_head == 32768 * 768
    assert parcae.params_total + 32768 * 768 == 68_825_664  # without the tables


def test_a_card_says_how_its_loop_runs() -> None:
    loop = card(MODELS["parcae-140m"]).loop
    assert loop is not None
    assert loop.backward_visits == 4
    assert loop.injection is not None
    assert (loop.injection.kind, loop.injection.params) == ("diagonal", 768 * 768 + 2 * 768)
    assert loop.injection.flops_train_per_token == (2 * 8 + 4 * 4) * 768 * 768
    assert loop.passes_drawn is not None
    assert (loop.passes_drawn.mean, loop.passes_drawn.most) == (8, None)
    drawn = card(MODELS["mor-360m-expert3"]).loop
    assert drawn is not None
    assert drawn.passes_drawn is not None
    assert (drawn.passes_drawn.mean, drawn.passes_drawn.most) == (2, 3)
    three = card(MODELS["mor-360m-expert3"].changed(layout="1-10-1x3"))
    assert drawn.passes_drawn.flops_train_per_token_most == three.flops[0].flops_train_per_token
    assert drawn.passes_drawn.kv_elements_per_token_most == three.kv_cache[0].kv_elements_per_token
    assert drawn.injection is None
    assert card(MODELS["mor-360m-vanilla"]).loop is None


def test_dense_widths_and_what_a_spec_assumes_are_on_the_card() -> None:
    found = card(MODELS["mor-360m-expert3"])
    assert found.config["dense_intermediate_size"] == 2560
    assert found.layout.dense_layers == "1-12"
    assert found.assumed == MODELS["mor-360m-expert3"].assumed
    assert "dense_intermediate_size" not in card(MODELS["200m_s95"]).config


@pytest.mark.parametrize("shown", ["table", "md", "tex", "csv"])
def test_every_format_says_all_of_it_and_names_the_model(shown: Format) -> None:
    text = card_text(card(MODELS["parcae-140m"]), shown)
    for told in ("parcae-140m", "passes, mean", "backward visits", "injection parameters", "value tables", "Poisson"):
        assert told in text
    assert "width over heads" in card_text(card(MODELS["mor-360m-vanilla"]), shown)


@given(st.text(max_size=30), st.sampled_from(["\n", "\r", "\x0b", "\x85", "\u2028", "|", " & ", "%", "\\"]))
def test_no_text_of_a_spec_leaves_its_comment_or_its_cell(text: str, sign: str) -> None:
    evil = f"{text}{sign}\\input{{evil}}"
    found = card(MODELS["nano_s85"].changed(source=evil, assumed={"head_dim": evil}))
    lines = card_text(found, "tex").splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(r"\begin{tabular}"))
    assert all(line.startswith("%") for line in lines[:begin])
    assert not any(r"\input" in line for line in lines[begin:])
    bare = card(MODELS["nano_s85"].changed(assumed={"head_dim": "x"}))
    rows = [line for line in card_text(found.model_copy(update={"source": ""}), "md").splitlines() if line]
    assert len(rows) == len(card_text(bare.model_copy(update={"source": ""}), "md").splitlines())
    assert all(re.sub(r"\\\\?\|", "", row).count("|") == 4 for row in rows)


def test_windows_cut_the_one_document_of_a_mean() -> None:
    found = card(MODELS["inkling-2-mini"], Context.given(Fraction(392), "given"))
    assert found.context.tokens == 783
    assert "one causal document of 783 tokens" in found.context.origin


def test_a_dense_config_has_a_card_without_sparsity() -> None:
    config = ROOT / "tests" / "spec" / "configs" / "llama-3.1-8b.json"
    found = card(read_config(config, json.loads(config.read_text(encoding="utf-8"))).spec)
    assert found.sparsity is None
    assert found.params.params_total_with_embeddings == 8_030_261_248
    assert found.context.mean_attended_context == "4097/2"
