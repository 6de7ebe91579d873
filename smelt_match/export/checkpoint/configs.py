"""config.json of exported checkpoints."""

from __future__ import annotations

import re
from typing import Any

from smelt_match.spec.model import ModelSpec

MAX_POSITIONS = 4096
"""Default of max_position_embeddings. Nothing in the weights depends on it; engines take it for their limit."""
ARCHITECTURES = {"mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
OF_EXPERTS = ("moe_intermediate_size", "num_experts_per_tok")
MODELLING_FILE = "modeling_smelt_match"
GROUPED = 8
"""torch's grouped GEMM wants strides of whole 16 bytes: widths of so many elements, whatever the dtype they load in."""
# What an export writes, and nothing else: --force never removes a folder that holds other files.
OURS = re.compile(r"config\.json|generation_config\.json|model(-\d{5}-of-\d{5})?\.safetensors|"
                  r"model\.safetensors\.index\.json|modeling_smelt_match\.py")  # fmt: skip


def _common(spec: ModelSpec, vocab_size: int, dtype: str, positions: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": len(spec.visits.visits),
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "num_experts_per_tok": spec.experts_per_token,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": positions,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "initializer_range": 0.02,
        # No tokenizer belongs to the model, so that no token ends a text.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
        "dtype": dtype,
    }


def stock_config(
    spec: ModelSpec, vocab_size: int, dtype: str, model_type: str, positions: int = MAX_POSITIONS
) -> dict[str, Any]:
    """The config of an unrolled model: an executed layer is a layer."""
    found = {"architectures": [ARCHITECTURES[model_type]], "model_type": model_type}
    found |= _common(spec, vocab_size, dtype, positions)
    if spec.hidden_size % GROUPED or spec.expert_intermediate_size % GROUPED:
        found["experts_implementation"] = "eager"  # transformers' default groups the products, and would fail
    if model_type == "mixtral":
        return found | {
            "num_local_experts": spec.num_experts,
            "intermediate_size": spec.expert_intermediate_size,
            "sliding_window": None,
        }
    return found | {
        "num_experts": spec.num_experts,
        "moe_intermediate_size": spec.expert_intermediate_size,
        "intermediate_size": spec.dense_intermediate_size or spec.expert_intermediate_size,
        "norm_topk_prob": spec.normalize_topk,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [visit for visit, index in enumerate(spec.visits.visits) if index in spec.dense],
        "attention_bias": False,
        "use_sliding_window": False,
    }


def looped_config(
    spec: ModelSpec, vocab_size: int, dtype: str, residual_scale: str, positions: int = MAX_POSITIONS
) -> dict[str, Any]:
    """The config of a looped checkpoint: blocks are stored, visits are executed and have a slot in the cache each."""
    heads, groups = spec.loop_heads
    found = {
        "architectures": ["SmeltMatchForCausalLM"],
        "model_type": "smelt_match",
        "auto_map": {
            "AutoConfig": f"{MODELLING_FILE}.SmeltMatchConfig",
            "AutoModel": f"{MODELLING_FILE}.SmeltMatchModel",
            "AutoModelForCausalLM": f"{MODELLING_FILE}.SmeltMatchForCausalLM",
        },
        **_common(spec, vocab_size, dtype, positions),
        "visits": list(spec.visits.visits),
        "residual_scale": residual_scale,
        "loop_num_attention_heads": heads,
        "loop_num_key_value_heads": groups,
        "qk_norm": spec.qk_norm,
        "num_experts": spec.num_experts,
        "moe_intermediate_size": spec.expert_intermediate_size,
        "norm_topk_prob": spec.normalize_topk,
        "shared_expert_intermediate_size": spec.shared_expert_intermediate_size,
        "shared_expert_gate": spec.shared_expert_gate,
        "dense_blocks": sorted(spec.dense),
        "intermediate_size": spec.dense_intermediate_size,
    }
    # A dense model has no experts that these could be sizes of.
    return {key: value for key, value in found.items() if value or key not in OF_EXPERTS}
