"""Small specs and models for these tests, and the unrolled copy of a looped model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.parameters import component_of
from smelt_match.spec.model import ModelSpec

V = 61

# Every part that can be built, in few enough combinations. Widths are odd on purpose: nothing may need alignment.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two matrices, biases everywhere": {
        "gated_mlp": False, "mlp_bias": True, "router_bias": True, "attention_bias": True,
        "attention_output_bias": True, "norm_bias": True, "dense_layers": "2", "dense_intermediate_size": 14,
    },
    "gated with biases": {"mlp_bias": True, "attention_bias": True, "normalize_topk": False},
    "shared experts, gates, head norms": {
        "shared_expert_intermediate_size": 10, "shared_expert_gate": True, "attention_gate": True, "qk_norm": "head",
        "tie_word_embeddings": True,
    },
    "width norms, wide values, no final norm": {
        "qk_norm": "width", "value_head_dim": 10, "final_norm": False, "shared_expert_intermediate_size": 6,
        "num_key_value_heads": 4,
    },
    "dense": {
        "dense_layers": "1-4", "dense_intermediate_size": 18, "num_experts": 0, "experts_per_token": 0,
        "expert_intermediate_size": 0,
    },
}  # fmt: skip


def tiny(layout: str = "none", **changes: Any) -> ModelSpec:
    """A spec of four layers."""
    fields: dict[str, Any] = {
        "name": "tiny", "hidden_size": 18, "num_layers": 4, "num_experts": 7, "experts_per_token": 3,
        "expert_intermediate_size": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "vocab_size": V, "layout": layout,
    }  # fmt: skip
    return ModelSpec.model_validate(fields | changes)


@torch.no_grad()
def build(spec: ModelSpec, **options: Any) -> LoopedTransformer:
    """A model whose every parameter matters: large random matrices, gains around 1, biases around 0."""
    model = LoopedTransformer(spec, **options)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in component_of(name) and name.endswith("weight"):
            parameter.copy_(1 + 0.3 * noise)
        else:
            parameter.copy_(0.3 * noise)
    return model


def tokens(rows: int = 2, length: int = 11) -> Tensor:
    """Random token ids."""
    return torch.randint(0, V, (rows, length))


WRITES = ("attention.output.", "feed_forward.experts.down", "feed_forward.shared.down.", "feed_forward.down.")


@torch.no_grad()
def unrolled(model: LoopedTransformer, without_scale: int | None = None) -> tuple[LoopedTransformer, list[int]]:
    """The same function as an unlooped model: a copy of its block for each visit, 1/r folded into what it writes.

    Args:
        model: A looped model.
        without_scale: A visit whose copy is left without its 1/r, to see that tests notice.

    Returns:
        The unrolled model, and the block that each of its blocks is a copy of.
    """
    visits, counts = list(model.visits), model.spec.visits.counts
    plain = copy.deepcopy(model)
    plain.visits = tuple(range(len(visits)))
    plain.blocks = torch.nn.ModuleList(copy.deepcopy(model.block(index)) for index in visits)
    for visit, index in enumerate(visits):
        block = plain.block(visit)
        block.scale = 1.0
        for name, parameter in block.named_parameters():
            if name.startswith(WRITES) and visit != without_scale:
                parameter.div_(counts[index])
    return plain, visits
