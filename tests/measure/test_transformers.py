"""The counts of an imported config against transformers' own model of it: parameters, cache, FLOPs, defaults."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pytest

from smelt_match.budget.active import active_counts
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import convention
from smelt_match.budget.ledger import ledger
from smelt_match.errors import BadInput, MissingExtra
from smelt_match.measure.transformers import built, built_parameters
from smelt_match.spec.family import expand
from smelt_match.spec.huggingface.fields import REQUIRED
from smelt_match.spec.huggingface.reader import ARCHITECTURES
from smelt_match.spec.huggingface.rope import ROPE
from smelt_match.spec.model import ModelSpec

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no kernel is looked for on the Hub
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

CONFIGS = Path(__file__).parent.parent / "spec" / "configs"
CUSTOM = {"ouro", "huginn_raven", "smelt_match"}  # their code is with the checkpoint, not in transformers
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json") if not path.stem.startswith(("ouro", "huginn")))
KINDS = sorted(kind for kind, known in ARCHITECTURES.items() if kind not in CUSTOM and known.within is None)

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}  # fmt: skip
SMALLER: dict[str, Any] = {
    "num_key_value_heads": 2, "head_dim": 16, "shared_expert_intermediate_size": 40, "q_lora_rank": 12,
    "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 2,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16, "unpadded_vocab_size": 90,
    "sliding_window_size": 24, "rel_extent": 40, "d_rel": 8, "n_layers_per_attn_res_block": 2, "loop_gate_rank": 5,
    "loop_layer_index_start": 2, "loop_layer_index_end": 4,
}  # fmt: skip
SWITCHES: list[tuple[str, Any]] = [
    ("tie_word_embeddings", True), ("tie_word_embeddings", False), ("attention_bias", True), ("attention_bias", False),
    ("mlp_bias", True), ("qkv_bias", False), ("lm_head_bias", True), ("use_qk_norm", True), ("q_lora_rank", None),
    ("num_key_value_heads", 1), ("head_dim", 24), ("decoder_sparse_step", 2), ("mlp_only_layers", [0, 3]),
    ("n_shared_experts", 3), ("first_k_dense_replace", 0), ("loop_num_passes", 1), ("conv_kernel_size", 3),
]  # fmt: skip


def small(kind: str) -> dict[str, Any]:
    """A small config: what is required, and what would be large by default."""
    if kind == "dbrx":
        return {
            "model_type": kind, "vocab_size": 96, "d_model": 64, "n_heads": 4, "n_layers": 3,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        }  # fmt: skip
    known = ARCHITECTURES[kind].defaults
    return {"model_type": kind, **{key: value for key, value in (SIZES | SMALLER).items() if key in known}}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def call(document: dict[str, Any]) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return call


def spec_of(path: Path) -> ModelSpec:
    spec = expand(str(path))[0].spec
    assert isinstance(spec, ModelSpec)
    return spec


@pytest.mark.parametrize("name", NAMES)
def test_a_published_config_has_the_parameters_that_transformers_builds(name: str) -> None:
    path = CONFIGS / f"{name}.json"
    assert active_counts(spec_of(path)).total == built_parameters(path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_switch_changes_our_count_as_it_changes_theirs(
    kind: str, write: Callable[[dict[str, Any]], Path]
) -> None:
    known = ARCHITECTURES[kind]
    plain = small(kind)
    switches = [(key, value) for key, value in SWITCHES if key in known.defaults and key not in known.neutral]
    if "swa_head_dim" in known.defaults:  # its sliding layers would keep the other geometry
        switches = [switch for switch in switches if switch[0] not in ("num_key_value_heads", "head_dim")]
        switches.append(("layer_types", ["hybrid", "hybrid_sliding"] * 3))
    variants = [{}, *({key: value} for key, value in switches)]
    for changes in variants:
        path = write(plain | changes)
        assert active_counts(spec_of(path)).total == built_parameters(path), changes


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_config_leaves_out_is_what_transformers_fills_in(kind: str) -> None:
    theirs = {field.name: field.default for field in dataclass_fields(transformers.CONFIG_MAPPING[kind])}
    undeclared = {"sliding_window_pattern": 6, "rotary_emb_base": None, "moe_layer_freq": 1, "head_dim": None,
                  "loop_config": None}  # fmt: skip
    for key, value in ARCHITECTURES[kind].defaults.items():
        if value is REQUIRED or key in ROPE or "." in key:
            continue
        assert key in theirs or key in undeclared, key
        assert value == theirs.get(key, undeclared.get(key)), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_minimal_config_is_the_model_that_transformers_makes_of_it(
    kind: str, write: Callable[[dict[str, Any]], Path]
) -> None:
    document = small(kind)
    if kind != "dbrx":
        required = [key for key, value in ARCHITECTURES[kind].defaults.items() if value is REQUIRED]
        enough = SIZES | {"num_hidden_layers": 24, "num_attention_heads": 32, "hidden_size": 256}
        document = {"model_type": kind, **{key: enough[key] for key in required}}
    path = write(document)
    assert active_counts(spec_of(path)).total == built_parameters(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_that_transformers_saves_is_read_again(name: str, tmp_path: Path) -> None:
    document = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    document.pop("auto_map", None)
    saved = transformers.AutoConfig.for_model(document.pop("model_type"), **document)
    for whole in (False, True):
        saved.to_json_file(tmp_path / "config.json", use_diff=not whole)
        ours, again = spec_of(CONFIGS / f"{name}.json"), spec_of(tmp_path / "config.json")
        own = {"name", "source", "rope_theta"}
        assert again.model_dump(exclude=own) == ours.model_dump(exclude=own)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "gpt_oss", "qwen2", "qwen3", "qwen2_moe"])
def test_windows_lie_in_the_layers_that_transformers_slides(kind: str, write: Callable[[dict[str, Any]], Path]) -> None:
    document = small(kind) | {"num_hidden_layers": 13, "sliding_window": 8}
    if "use_sliding_window" in ARCHITECTURES[kind].defaults:
        document |= {"use_sliding_window": True, "max_window_layers": 5}
    config = transformers.AutoConfig.for_model(**document)
    theirs = {index for index, layer in enumerate(config.layer_types) if layer == "sliding_attention"}
    spec = spec_of(write(document))
    assert theirs
    assert (spec.windowed, spec.sliding_window) == (theirs, config.sliding_window)


def _run(path: Path, tokens: int) -> tuple[Any, int]:
    """The output of transformers' model on a few tokens, and the FLOPs of its forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = built(path, "cpu").eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        output = model(torch.randint(0, 80, (1, tokens)), use_cache=True)
    return output, counter.get_total_flops()


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "glm4_moe", "gpt_oss", "hrm_text", "inkling2_loop_text"])
def test_a_filled_cache_holds_what_is_counted(kind: str, write: Callable[[dict[str, Any]], Path]) -> None:
    path, tokens = write(small(kind)), 12
    output, _ = _run(path, tokens)
    cache = output.cache if hasattr(output, "cache") else output.past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert held == tokens * ledger(spec_of(path), convention("paper"), Context.causal(tokens)).budget.kv


def _forward(spec: ModelSpec, tokens: int) -> int:
    """Our FLOPs of one forward pass over a document, scores for every pair of tokens, as eager attention runs."""
    book = ledger(spec, convention("paper", include_head=True), Context.causal(tokens))
    sums = book.totals
    scores = sums.scores + sum(sums.windowed.values())
    matmul = 2 * sum(row.executed for row in book.rows if row.matmul)
    return tokens * matmul + tokens * tokens * scores // 3


@pytest.mark.parametrize("kind", ["llama", "gemma2", "glm4_moe", "hrm_text"])
def test_a_forward_pass_costs_what_is_counted(kind: str, write: Callable[[dict[str, Any]], Path]) -> None:
    path = write(small(kind))
    spec = spec_of(path).changed(backward_visits=None)
    assert _run(path, 12)[1] == _forward(spec, 12)


def test_a_forward_pass_of_inkling_costs_what_is_counted(write: Callable[[dict[str, Any]], Path]) -> None:
    """Apart from convolutions: padded ones run over some tokens more, and those with dynamic taps are no matmul."""
    path, tokens = write(small("inkling2_loop_text")), 12
    spec = spec_of(path)
    book = ledger(spec, convention("paper"), Context.causal(tokens))
    rows = [row for row in book.rows if row.component.endswith("convolutions")]
    full = sorted(set(range(spec.num_layers)) - spec.windowed)
    taps, heads = 4, 2 * spec.num_key_value_heads * spec.head_dim
    dynamic = sum(spec.visits.counts[layer] for layer in full) * taps * heads
    static = sum(row.executed for row in rows) - dynamic
    assert _run(path, tokens)[1] == _forward(spec, tokens) + 2 * (taps - 1) * static - 2 * tokens * dynamic


def test_what_transformers_cannot_build_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="transformers builds no causal language model from it"):
        built_parameters(CONFIGS / "huginn-0125.json")
    (tmp_path / "spec.yaml").write_text("name: x")
    with pytest.raises(BadInput, match="not a Hugging Face config"):
        built_parameters(tmp_path / "spec.yaml")


def test_without_transformers_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "transformers":
            raise ImportError("No module named 'transformers'", name="transformers")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra) as caught:
        built_parameters(CONFIGS / "llama-3.1-8b.json")
    assert caught.value.hint == "pip install 'smelt-match[hf]'"
