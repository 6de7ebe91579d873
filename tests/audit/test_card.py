"""The budget card: its numbers are the ledger's, and every card follows the published schema."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from smelt_match.audit.card import Card, card
from smelt_match.budget.context import Context
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


def test_a_dense_config_has_a_card_without_sparsity() -> None:
    config = ROOT / "tests" / "spec" / "configs" / "llama-3.1-8b.json"
    found = card(read_config(config, json.loads(config.read_text(encoding="utf-8"))).spec)
    assert found.sparsity is None
    assert found.params.params_total_with_embeddings == 8_030_261_248
    assert found.context.mean_attended_context == "4097/2"
