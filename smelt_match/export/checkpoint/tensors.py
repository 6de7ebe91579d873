"""The weights of a model under the names and in the shapes of other systems.

Shapes: H width, E experts, I expert width. Our expert matrices have inputs first, (E, H, 2I) and (E, I, H); those of
transformers have outputs first.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from smelt_match.model.block import Block
from smelt_match.model.feed_forward import Dense, MixtureOfExperts
from smelt_match.model.loop import LoopedTransformer

Named = Iterator[tuple[str, Tensor]]


def unrolled(model: LoopedTransformer, model_type: str) -> Named:
    """A layer for each visit, in order of execution, with the residual scale folded into what it writes.

    Experts are stored one by one, as the checkpoints on the Hub are: transformers 4 and 5 and other engines read that.
    """
    yield from _ends(model)
    for visit, index in enumerate(model.visits):
        block = model.block(index)
        for name, tensor in (*_attention(block, block.scale), *_apart(block, model_type, block.scale)):
            yield f"model.layers.{visit}.{name}", tensor


def looped(model: LoopedTransformer) -> Named:
    """Each block once, for the modelling file of looped checkpoints, which scales updates itself."""
    yield from _ends(model)
    for index in range(model.spec.num_layers):
        for name, tensor in (*_attention(model.block(index), 1.0), *_together(model.block(index))):
            yield f"model.layers.{index}.{name}", tensor


def _ends(model: LoopedTransformer) -> Named:
    yield "model.embed_tokens.weight", model.embedding.weight
    if model.final_norm is not None:
        yield "model.norm.weight", model.final_norm.get_parameter("weight")
    if model.head is not None:
        yield "lm_head.weight", model.head.weight


def _attention(block: Block, scale: float) -> Named:
    """Attention and both norms of a block."""
    yield "input_layernorm.weight", block.attention_norm.get_parameter("weight")
    yield "post_attention_layernorm.weight", block.feed_forward_norm.get_parameter("weight")
    attention = block.attention
    yield "self_attn.q_proj.weight", attention.query.weight
    yield "self_attn.k_proj.weight", attention.key.weight
    yield "self_attn.v_proj.weight", attention.value.weight
    yield "self_attn.o_proj.weight", _scaled(attention.output.weight, scale)
    if attention.qk_norm != "none":
        yield "self_attn.q_norm.weight", attention.query_norm.weight
        yield "self_attn.k_norm.weight", attention.key_norm.weight


def _apart(block: Block, model_type: str, scale: float) -> Named:
    """The feed-forward of a block, each expert by itself."""
    second = block.feed_forward
    if isinstance(second, Dense):
        yield from _dense("mlp", second, scale)
        return
    place = "block_sparse_moe" if model_type == "mixtral" else "mlp"
    names = ("w1", "w3", "w2") if model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    yield f"{place}.gate.weight", second.router.weight
    for index, (up_HF, down_IH) in enumerate(zip(second.experts.up, second.experts.down, strict=True)):
        matrices = (*up_HF.T.chunk(2), _scaled(down_IH.T, scale))
        for name, matrix in zip(names, matrices, strict=True):
            yield f"{place}.experts.{index}.{name}.weight", matrix


def _together(block: Block) -> Named:
    """The feed-forward of a block, its experts in stacked matrices."""
    second = block.feed_forward
    if isinstance(second, Dense):
        yield from _dense("mlp", second, 1.0)
        return
    assert isinstance(second, MixtureOfExperts)
    yield "mlp.gate.weight", second.router.weight
    yield "mlp.experts.gate_up_proj", second.experts.up.transpose(1, 2)
    yield "mlp.experts.down_proj", second.experts.down.transpose(1, 2)
    if second.shared is not None:
        yield from _dense("mlp.shared_expert", second.shared, 1.0)
    if second.shared_gate is not None:
        yield "mlp.shared_expert_gate.weight", second.shared_gate.weight


def _dense(place: str, second: Dense, scale: float) -> Named:
    gate, up = second.up.weight.chunk(2)
    yield f"{place}.gate_proj.weight", gate
    yield f"{place}.up_proj.weight", up
    yield f"{place}.down_proj.weight", _scaled(second.down.weight, scale)


def _scaled(weight: Tensor, scale: float) -> Tensor:
    return weight if scale == 1.0 else weight.float() * scale
