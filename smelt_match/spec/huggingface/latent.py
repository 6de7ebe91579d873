"""DeepSeek-V2 and V3: multi-head latent attention, dense layers first, shared experts."""

from __future__ import annotations

from typing import Any

from smelt_match.spec.huggingface.dense import SIZES
from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.moe import GROUPS, MTP, first_dense
from smelt_match.spec.huggingface.pieces import attention
from smelt_match.spec.huggingface.rope import ROPE


def deepseek(f: Fields) -> dict[str, Any]:
    """MLA of arXiv 2405.04434: the cache holds one latent and one rotary key for each token and layer."""
    H, rank, cached = f["hidden_size"], f["q_lora_rank"], f["kv_lora_rank"]
    rotary = f["qk_rope_head_dim"]
    f.values["head_dim"] = f["qk_nope_head_dim"] + rotary
    spec = {
        **attention(f),
        **first_dense(f, f.values.get("moe_layer_freq") or 1),
        "latent_attention": {
            "q_lora_rank": rank, "kv_lora_rank": cached, "qk_nope_head_dim": f["qk_nope_head_dim"],
            "qk_rope_head_dim": rotary, "v_head_dim": f["v_head_dim"],
        },
    }  # fmt: skip
    if f["attention_bias"]:
        down = rank or 0
        spec["extras"] = [
            {
                "name": "attention biases", "layers": f"1-{f['num_hidden_layers']}", "cost": "gain",
                "params": down + cached + rotary + H, "formula": f"{down} + ({cached} + {rotary}) + {H}",
            }
        ]  # fmt: skip
    return spec


_LATENT = {
    **SIZES, **ROPE, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    "attention_bias": False, "num_experts_per_tok": REQUIRED, "n_routed_experts": REQUIRED,
    "moe_intermediate_size": REQUIRED, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
}  # fmt: skip
_DERIVED = {
    "head_dim": "always qk_rope_head_dim", "qk_head_dim": "always qk_nope_head_dim + qk_rope_head_dim",
    "num_key_value_heads": "latent attention has keys and values for each query head",
}  # fmt: skip

LATENT = {
    "deepseek_v2": Architecture(
        deepseek,
        {**_LATENT, "n_shared_experts": 2, "first_k_dense_replace": 0, "norm_topk_prob": False},
        {**MTP, **GROUPS, **_DERIVED},
        {"mlp_bias": ((False, None), "biases on dense and shared experts, but not on routed ones, cannot be counted")},
        {"num_experts": "n_routed_experts"},
    ),
    "deepseek_v3": Architecture(
        deepseek,
        {**_LATENT, "n_shared_experts": 1, "first_k_dense_replace": 3, "norm_topk_prob": True},
        {**MTP, **GROUPS, **_DERIVED},
        aliases={"num_local_experts": "n_routed_experts"},
    ),
}  # fmt: skip
