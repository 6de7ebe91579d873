"""What each field of a config may hold: its type and its range, by name, the same in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from smelt_match.spec.layout import MAX_LAYERS, MAX_VISITS
from smelt_match.spec.model import MAX_COUNT
from smelt_match.spec.parts import MAX_WIDTH


class Kind(NamedTuple):
    """A type with a range. ``null`` says whether null stands for leaving the field out."""

    words: str
    holds: Callable[[Any], bool]
    null: bool = False


def _whole(low: int, high: int, null: bool = False) -> Kind:
    def holds(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Kind(f"a whole number from {low:,} to {high:,}", holds, null)


def _number(low: float, high: float, null: bool = False) -> Kind:
    def holds(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and low < value < high

    return Kind(f"a number between {low:g} and {high:g}", holds, null)


def _list_of(kind: type, words: str) -> Kind:
    def holds(value: Any) -> bool:
        return isinstance(value, list) and all(type(item) is kind for item in value)

    return Kind(words, holds, null=True)


WIDTH = _whole(1, MAX_WIDTH)
OPTIONAL_WIDTH = _whole(1, MAX_WIDTH, null=True)
COUNT = _whole(1, MAX_COUNT)
OPTIONAL_COUNT = _whole(1, MAX_COUNT, null=True)
EXPERTS = _whole(0, MAX_COUNT)
LAYERS = _whole(1, MAX_LAYERS)
SOME_LAYERS = _whole(0, MAX_LAYERS)
VISITS = _whole(1, MAX_VISITS)
VOCABULARY = _whole(1, 2**31)
WINDOW = _whole(0, 2**40, null=True)
BOOL = Kind("true or false", lambda value: isinstance(value, bool))
EPS = _number(0, 1)
THETA = _number(0, 1e30, null=True)
QK_NORM = Kind("none, head or width", lambda value: value in ("none", "head", "width"))
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict), null=True)
LAYER_TYPES = _list_of(str, "a list of layer types")
WHOLE_NUMBERS = _list_of(int, "a list of whole numbers")

KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        ("hidden_size", "intermediate_size", "moe_intermediate_size", "ffn_hidden_size",
         "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "swa_head_dim", "d_rel", "rel_extent",
         "conv_kernel_size", "loop_gate_rank"), WIDTH,
    ),
    **dict.fromkeys(("head_dim", "q_lora_rank", "shared_expert_intermediate_size"), OPTIONAL_WIDTH),
    **dict.fromkeys(
        ("num_attention_heads", "kv_n_heads", "num_experts_per_tok", "moe_top_k", "decoder_sparse_step",
         "moe_layer_freq", "swa_num_attention_heads", "swa_num_key_value_heads"), COUNT,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "loop_num_attention_heads", "loop_num_key_value_heads"), OPTIONAL_COUNT
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS
    ),
    "n_shared_experts": _whole(0, MAX_COUNT, null=True),
    **dict.fromkeys(("num_hidden_layers", "n_layers_in_recurrent_block"), LAYERS),
    **dict.fromkeys(("num_layers_per_stack", "n_layers"), _whole(1, MAX_LAYERS, null=True)),
    **dict.fromkeys(
        ("first_k_dense_replace", "max_window_layers", "n_layers_in_prelude", "n_layers_in_coda",
         "loop_layer_index_start", "loop_layer_index_end"), SOME_LAYERS,
    ),
    "n_layers_per_attn_res_block": LAYERS,
    **dict.fromkeys(
        ("total_ut_steps", "mean_recurrence", "mean_backprop_depth", "H_cycles", "L_cycles", "loop_num_passes"), VISITS
    ),
    "sliding_window_pattern": LAYERS,
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size"), VOCABULARY),
    "padded_vocab_size": _whole(1, 2**31, null=True),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), WINDOW),
    **dict.fromkeys(
        ("tie_word_embeddings", "tie_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "qk_bias", "lm_head_bias",
         "use_sliding_window", "use_qk_norm", "shared_expert_gate"), BOOL,
    ),
    "norm_topk_prob": BOOL._replace(null=True),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_eps"), EPS),
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "rope_base"), THETA),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "loop_config"), MAPPING),
    "layer_types": LAYER_TYPES,
    **dict.fromkeys(("mlp_only_layers", "L_bp_cycles", "visits", "dense_blocks"), WHOLE_NUMBERS),
    "qk_norm": QK_NORM,
}  # fmt: skip


def kind_of(key: str) -> Kind:
    """The kind of a field, by its own name (``attn_config.kv_n_heads`` is a ``kv_n_heads``)."""
    return KINDS[key.rpartition(".")[2]]
