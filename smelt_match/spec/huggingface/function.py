"""What a config's model computes that a spec cannot say. No count depends on it; a built or exported model would.

A spec's model has pre-norm RMSNorm blocks, rotary embeddings over whole heads, SwiGLU or plain GELU, and a softmax
router. The architectures below are not that, whatever their fields say; the others are, where their fields hold the
plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt_match.spec.huggingface.rope import parts
from smelt_match.spec.huggingface.strict import shown

_SIGMOID = "the router takes sigmoids and chooses among groups of experts, with a bias"
DIFFERENT: dict[str, str] = {
    "olmo2": "norms stand behind attention and feed-forward",
    "gemma2": "embeddings are scaled, logits are capped, norms add 1 to their gains and stand on both sides",
    "gemma3": "embeddings are scaled, norms add 1 to their gains and stand on both sides",
    "gemma3_text": "embeddings are scaled, norms add 1 to their gains and stand on both sides",
    "gpt_neox": "attention and feed-forward run side by side, on a part of each head rotated",
    "deepseek_v2": "the router chooses among groups of experts and scales their weights",
    "deepseek_v3": _SIGMOID,
    "glm4_moe": f"{_SIGMOID}; a part of each head is rotated",
    "gpt_oss": "experts clamp their activations, and the router's softmax is over the chosen ones",
    "dbrx": "norms are LayerNorm, and projections are clipped",
    "phimoe": "the router is SparseMixer",
    "granitemoe": "embeddings, attention, residuals and logits have multipliers",
    "ouro": "norms stand on both sides, and the final norm and an exit gate run in every step",
    "huginn_raven": "norms stand on both sides, and an adapter mixes the input into every recurrence",
    "hrm_text": "two stacks add to each other's states, and attention is gated",
    "inkling2_loop": "convolutions, relative positions, residual attention and message gates",
    "inkling2_loop_text": "convolutions, relative positions, residual attention and message gates",
}
_PLAIN: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None),
    "hidden_activation": ("silu", "swish", None),
    "partial_rotary_factor": (1, None),
    "clip_qkv": (None,),
    "residual_scale": ("1/r", None),
}


def left_out(kind: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences, one for each thing that a spec of this config leaves out; none where it says all.

    Args:
        kind: The ``model_type``.
        document: The fields of the text model.
    """
    found = [DIFFERENT[kind]] if kind in DIFFERENT else []
    found += [
        f"{key} {shown(document[key])}"
        for key, plain in _PLAIN.items()
        if key in document and document[key] not in plain
    ]
    for key in ("rope_scaling", "rope_parameters"):
        mapping = document.get(key)
        for name, part in parts(mapping) if mapping else ():
            rope = part.get("rope_type", part.get("type", "default"))
            if rope != "default":
                found.append(f"{key}.{name}: {rope}" if name else f"{key}: {rope}")
    return tuple(found)
