"""Dense decoders: Llama, Mistral, Qwen2, Qwen3, OLMo 2, Gemma 2 and 3, GPT-NeoX."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.pieces import attention, biases, dense, optional_windows, typed_windows, windows
from smelt_match.spec.huggingface.rope import ROPE

SIZES = dict.fromkeys(
    ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), REQUIRED
)
LLAMA = {**SIZES, **ROPE, "num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": False,
         "rms_norm_eps": 1e-6}  # fmt: skip
QWEN_WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
GEMMA = {
    **ROPE, "hidden_size": REQUIRED, "intermediate_size": REQUIRED, "num_hidden_layers": REQUIRED,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6, "attention_bias": False, "sliding_window": 4096, "layer_types": None,
}  # fmt: skip
SOFTCAPS = {"query_pre_attn_scalar": "", "final_logit_softcapping": "", "attn_logit_softcapping": ""}


def _plain(f: Fields, **fields: Any) -> dict[str, Any]:
    return {**attention(f), **dense(f["intermediate_size"], f["num_hidden_layers"]), **fields}


def llama(f: Fields) -> dict[str, Any]:
    """Llama: one bias switch for attention, one for the feed-forward."""
    return _plain(f, **biases(f), mlp_bias=f["mlp_bias"])


def mistral(f: Fields) -> dict[str, Any]:
    """Mistral: a window in every layer, unless it is null."""
    return _plain(f, **windows(f))


def qwen2(f: Fields) -> dict[str, Any]:
    """Qwen2: biases on queries, keys and values; windows from ``max_window_layers`` on, if switched on."""
    late = range(f["max_window_layers"], f["num_hidden_layers"])
    return _plain(f, attention_bias=True, **optional_windows(f, late))


def qwen3(f: Fields) -> dict[str, Any]:
    """Qwen3: RMSNorm on each query and key head."""
    late = range(f["max_window_layers"], f["num_hidden_layers"])
    return _plain(f, **biases(f), qk_norm="head", **optional_windows(f, late))


def olmo2(f: Fields) -> dict[str, Any]:
    """OLMo 2: RMSNorm on the whole width of queries and keys; norms after attention and feed-forward."""
    return _plain(f, **biases(f), qk_norm="width")


def gemma2(f: Fields) -> dict[str, Any]:
    """Gemma 2: four norms in each block, a window in every other layer."""
    return _plain(f, **biases(f), norms_per_block=4, **typed_windows(f, range(0, f["num_hidden_layers"], 2)))


def gemma3(f: Fields) -> dict[str, Any]:
    """Gemma 3: as Gemma 2, with norms on query and key heads, and full attention in every sixth layer."""
    depth, pattern = f["num_hidden_layers"], f["sliding_window_pattern"]
    local = [index for index in range(depth) if (index + 1) % pattern]
    spec = {**attention(f, 1e6), **dense(f["intermediate_size"], depth)}
    return {**spec, **biases(f), "qk_norm": "head", "norms_per_block": 4, **typed_windows(f, local)}


def gpt_neox(f: Fields) -> dict[str, Any]:
    """GPT-NeoX: LayerNorm with biases, two feed-forward matrices with biases."""
    f.values["rope_theta"] = f["rope_theta"] or f["rotary_emb_base"]
    f.values["rms_norm_eps"] = f["layer_norm_eps"]
    return _plain(f, **biases(f), gated_mlp=False, mlp_bias=True, norm_bias=True)


_QWEN2 = {**LLAMA, "num_key_value_heads": 32, **QWEN_WINDOWS}
_GEMMA3 = {**GEMMA, "vocab_size": 262_208, "sliding_window_pattern": 6}

DENSE = {
    "llama": Architecture(llama, {**LLAMA, "attention_bias": False, "mlp_bias": False}),
    "mistral": Architecture(mistral, {**LLAMA, "num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": Architecture(qwen2, _QWEN2),
    "qwen3": Architecture(qwen3, {**_QWEN2, "head_dim": 128, "attention_bias": False}),
    "olmo2": Architecture(olmo2, {**LLAMA, "rms_norm_eps": 1e-5, "attention_bias": False}),
    "gemma2": Architecture(
        gemma2, {**GEMMA, "vocab_size": 256_000}, SOFTCAPS, aliases={"sliding_window_size": "sliding_window"}
    ),
    "gemma3_text": Architecture(gemma3, _GEMMA3, {**SOFTCAPS, "_sliding_window_pattern": ""}),
    "gemma3": Architecture(
        gemma3,
        {},
        {
            "vision_config": "the vision tower is left out", "mm_tokens_per_image": "", "boi_token_index": "",
            "eoi_token_index": "", "image_token_index": "",
        },
        within=("text_config", "gemma3_text"),
    ),
    "gpt_neox": Architecture(
        gpt_neox,
        {**SIZES, **ROPE, "rotary_emb_base": None, "tie_word_embeddings": False, "attention_bias": True,
         "layer_norm_eps": 1e-5},
        {"use_parallel_residual": ""},
    ),
}  # fmt: skip
