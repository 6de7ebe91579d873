"""``smelt_match``: the checkpoints that `export --to hf` writes, read back as the looped model they hold."""

from __future__ import annotations

from typing import Any

from smelt_match.errors import BadInput
from smelt_match.spec.huggingface.fields import REQUIRED, Architecture, Fields
from smelt_match.spec.huggingface.pieces import attention, routed
from smelt_match.spec.huggingface.rope import ROPE
from smelt_match.spec.layout import Layout


def smelt_match(f: Fields) -> dict[str, Any]:
    """Blocks are stored and visited in the order of ``visits``; ``num_hidden_layers`` counts visits, as caches do."""
    layout = _layout(f)
    f.values["num_hidden_layers"] = layout.num_layers
    listed = f["dense_blocks"] or ()
    outside = [index for index in listed if not 0 <= index < layout.num_layers]
    if outside:
        f.fault("dense_blocks", f"block {outside[0]} does not exist; there are {layout.num_layers}")
    dense = set(listed) - set(outside)
    if dense and f["intermediate_size"] is None:
        f.fault("intermediate_size", "required where dense_blocks lists a block")
    spec = {
        **attention(f),
        **routed(f, "num_experts", f["moe_intermediate_size"], dense, f["intermediate_size"] or 0),
        "layout": "none" if layout.is_unlooped else layout.canonical,
        "qk_norm": f["qk_norm"],
    }
    if spec["num_experts"]:
        spec |= {
            "normalize_topk": bool(f["norm_topk_prob"]),
            "shared_expert_intermediate_size": f["shared_expert_intermediate_size"],
            "shared_expert_gate": f["shared_expert_gate"],
        }
    heads = f["loop_num_attention_heads"], f["loop_num_key_value_heads"]
    if layout.loop and heads not in ((None, None), (spec["num_attention_heads"], spec["num_key_value_heads"])):
        spec |= {"loop_num_attention_heads": heads[0], "loop_num_key_value_heads": heads[1]}
    return spec


def _layout(f: Fields) -> Layout:
    order, stated = f["visits"], f["num_hidden_layers"]
    if not order:
        f.fault("visits", "a list with at least one block is wanted")
        return Layout(1, (0,))
    if stated not in (None, len(order)):
        f.fault("num_hidden_layers", f"{stated}, but visits has {len(order)} entries")
    try:
        return Layout(max(order) + 1, tuple(order))
    except BadInput as error:
        f.fault("visits", error.message)
        return Layout(1, (0,))


OWN = {
    "smelt_match": Architecture(
        smelt_match,
        {
            **dict.fromkeys(("visits", "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads",
                             "head_dim"), REQUIRED),
            **ROPE, "num_hidden_layers": None, "loop_num_attention_heads": None, "loop_num_key_value_heads": None,
            "qk_norm": "none", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "norm_topk_prob": True, "shared_expert_intermediate_size": None, "shared_expert_gate": False,
            "dense_blocks": [], "intermediate_size": None, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        },
        {"residual_scale": ""},
    ),
}  # fmt: skip
