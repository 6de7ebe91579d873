"""Decoders with routed experts and grouped-query attention: Mixtral, Qwen, OLMoE, gpt-oss, GLM, DBRX, Phi, Granite."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.dense import LLAMA
from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.pieces import (
    attention,
    biases,
    optional_windows,
    routed,
    typed_windows,
    windows,
    within,
)
from smelt_match.spec.huggingface.rope import ROPE

MTP = {
    "num_nextn_predict_layers": "multi-token prediction layers are left out of every count",
    "num_mtp_layers": "multi-token prediction layers are left out of every count",
}
GROUPS = dict.fromkeys(("n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor", "ep_size"), "")


EXPERTS = {"num_experts": "num_local_experts"}
LOCAL = {"num_local_experts": "num_experts"}


def mixtral(f: Fields) -> dict[str, Any]:
    """Mixtral: experts in every layer; a window in every layer if given."""
    return {**attention(f, 1e6), **routed(f, "num_local_experts", f["intermediate_size"]), **windows(f)}


def phimoe(f: Fields) -> dict[str, Any]:
    """Phi-3.5-MoE: Mixtral with LayerNorm, and biases on attention and output head."""
    return {**mixtral(f), **biases(f), "norm_bias": True, "output_head_bias": f["lm_head_bias"]}


def granitemoe(f: Fields) -> dict[str, Any]:
    """Granite MoE: experts in every layer, multipliers that no budget depends on."""
    return {**attention(f), **routed(f, "num_local_experts", f["intermediate_size"]), **biases(f)}


def _sparse(f: Fields) -> set[int]:
    """Dense layers of Qwen's MoE models: ``mlp_only_layers``, and all but every ``decoder_sparse_step``-th."""
    step = f["decoder_sparse_step"]
    plain = within(f, "mlp_only_layers", f["mlp_only_layers"] or ())
    return plain | {index for index in range(f["num_hidden_layers"]) if (index + 1) % step}


def _qwen_experts(f: Fields) -> dict[str, Any]:
    found = routed(f, "num_experts", f["moe_intermediate_size"], _sparse(f), f["intermediate_size"])
    return found | {"normalize_topk": bool(f["norm_topk_prob"])}


def qwen2_moe(f: Fields) -> dict[str, Any]:
    """Qwen2-MoE: shared experts behind a gate; biases on queries, keys and values."""
    early = range(0, min(f["max_window_layers"], f["num_hidden_layers"]), 2)
    spec = {**attention(f), **_qwen_experts(f), "attention_bias": f["qkv_bias"], **optional_windows(f, early)}
    if f["shared_expert_intermediate_size"] and spec["num_experts"]:
        spec |= {"shared_expert_intermediate_size": f["shared_expert_intermediate_size"], "shared_expert_gate": True}
    return spec


def qwen3_moe(f: Fields) -> dict[str, Any]:
    """Qwen3-MoE: RMSNorm on each query and key head, no shared experts."""
    return {**attention(f), **_qwen_experts(f), **biases(f), "qk_norm": "head", **optional_windows(f, None)}


def olmoe(f: Fields) -> dict[str, Any]:
    """OLMoE: RMSNorm on the whole width of queries and keys."""
    spec = {**attention(f), **routed(f, "num_experts", f["intermediate_size"]), **biases(f)}
    return {**spec, "qk_norm": "width", "normalize_topk": bool(f["norm_topk_prob"])}


def gpt_oss(f: Fields) -> dict[str, Any]:
    """gpt-oss: biases everywhere, a sink for each query head, a window in every other layer."""
    spec = {**attention(f, 150_000.0), **routed(f, "num_local_experts", f["intermediate_size"]), **biases(f)}
    spec |= {"mlp_bias": True, "router_bias": True, "attention_sinks": True}
    return spec | typed_windows(f, range(0, f["num_hidden_layers"], 2))


def first_dense(f: Fields, step: int = 1) -> dict[str, Any]:
    """GLM and DeepSeek: dense layers first, then experts beside shared ones."""
    width, depth = f["moe_intermediate_size"], f["num_hidden_layers"]
    plain = {index for index in range(depth) if index < f["first_k_dense_replace"] or index % step}
    found = routed(f, "n_routed_experts", width, plain, f["intermediate_size"])
    if f["n_shared_experts"] and found["num_experts"]:
        found["shared_expert_intermediate_size"] = f["n_shared_experts"] * width
    return found | {"normalize_topk": bool(f["norm_topk_prob"])}


def glm4_moe(f: Fields) -> dict[str, Any]:
    """GLM-4.5: biases on queries, keys and values; norms on their heads if switched on."""
    return {
        **attention(f), **first_dense(f), **biases(f, output=False),
        "qk_norm": "head" if f["use_qk_norm"] else "none",
    }  # fmt: skip


def dbrx(f: Fields) -> dict[str, Any]:
    """DBRX: LayerNorm without biases, heads of size H / n_q."""
    f.values["rope_theta"] = f["rope_theta"] or f["attn_config.rope_theta"]
    f.values["num_key_value_heads"] = f["attn_config.kv_n_heads"]
    f.values["num_experts_per_tok"] = f["ffn_config.moe_top_k"]
    return {**attention(f), **routed(f, "ffn_config.moe_num_experts", f["ffn_config.ffn_hidden_size"])}


_EXPERTS = {**LLAMA, "num_experts_per_tok": REQUIRED}
_MIXTRAL = {**_EXPERTS, "num_local_experts": REQUIRED, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "sliding_window": None}  # fmt: skip
_QWEN = {
    **_EXPERTS, "num_experts": REQUIRED, "moe_intermediate_size": REQUIRED, "decoder_sparse_step": 1,
    "mlp_only_layers": None, "norm_topk_prob": False, "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
_OLMOE = {key: value for key, value in _EXPERTS.items() if key != "head_dim"}  # its query norm has the width H

MOE = {
    "mixtral": Architecture(mixtral, _MIXTRAL, aliases=EXPERTS),
    "phimoe": Architecture(phimoe, {**_MIXTRAL, "attention_bias": False, "lm_head_bias": False}),
    "granitemoe": Architecture(
        granitemoe,
        {**_EXPERTS, "num_local_experts": REQUIRED, "attention_bias": False},
        dict.fromkeys(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"), ""),
    ),
    "qwen2_moe": Architecture(
        qwen2_moe,
        {**_QWEN, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "qkv_bias": True,
         "max_window_layers": 28, "layer_types": None},
    ),
    "qwen3_moe": Architecture(
        qwen3_moe,
        {**_QWEN, "num_key_value_heads": 4, "attention_bias": False},
        {"max_window_layers": ""},
        aliases=LOCAL,
    ),
    "olmoe": Architecture(
        olmoe,
        {**_OLMOE, "num_experts": REQUIRED, "rms_norm_eps": 1e-5, "attention_bias": False, "norm_topk_prob": False},
        {"clip_qkv": ""},
        aliases=LOCAL,
    ),
    "gpt_oss": Architecture(
        gpt_oss,
        {**_EXPERTS, "num_local_experts": REQUIRED, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5,
         "sliding_window": 128, "layer_types": None, "attention_bias": True},
        {"swiglu_limit": "", "swiglu_alpha": "", "initial_context_length": ""},
        aliases={"experts_per_token": "num_experts_per_tok", **EXPERTS},
    ),
    "glm4_moe": Architecture(
        glm4_moe,
        {**_EXPERTS, "n_routed_experts": REQUIRED, "moe_intermediate_size": REQUIRED, "n_shared_experts": 1,
         "first_k_dense_replace": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "attention_bias": False,
         "use_qk_norm": False, "norm_topk_prob": True},
        {**MTP, **GROUPS},
        aliases={"num_local_experts": "n_routed_experts"},
    ),
    "dbrx": Architecture(
        dbrx,
        {**ROPE, "vocab_size": REQUIRED, "hidden_size": REQUIRED, "num_attention_heads": REQUIRED,
         "num_hidden_layers": REQUIRED,
         "attn_config.kv_n_heads": REQUIRED, "attn_config.rope_theta": None, "ffn_config.ffn_hidden_size": REQUIRED,
         "ffn_config.moe_num_experts": REQUIRED, "ffn_config.moe_top_k": REQUIRED, "tie_word_embeddings": False},
        {"ffn_config.ffn_act_fn": "", "attn_config.clip_qkv": "", "attn_config.model_type": "",
         "ffn_config.model_type": "", "ffn_config.moe_jitter_eps": "", "ffn_config.moe_loss_weight": "",
         "ffn_config.moe_normalize_expert_weights": "", "ffn_config.uniform_expert_assignment": "",
         "ffn_config.hidden_size": "always d_model"},
        {"tie_word_embeddings": ((False,), "transformers ties no DBRX head")},
        aliases={"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
                 "num_key_value_heads": "attn_config.kv_n_heads"},
        nested=("attn_config", "ffn_config"),
    ),
}  # fmt: skip
