"""Text from a model, token by token.

Shapes: B rows, S tokens in a row, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smelt_match.errors import BadInput
from smelt_match.model.loop import LoopedTransformer


@torch.no_grad()
def generate(
    model: LoopedTransformer,
    tokens_BS: Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue rows of tokens with a KV cache that keeps what the spec's KV policy says.

    Args:
        model: The model.
        tokens_BS: Prompts of equal length, at least one token each.
        max_new_tokens: How many tokens to add.
        temperature: 0 takes the most probable token; above, logits are divided by it and one is drawn.
        top_k: Draw among the k most probable tokens only.
        generator: Where the random numbers come from.

    Returns:
        Prompts and continuations, (B, S + max_new_tokens).
    """
    if tokens_BS.dim() != 2 or tokens_BS.shape[1] == 0:
        raise BadInput(f"tokens: shape (rows, at least 1 token) is wanted, found {tuple(tokens_BS.shape)}")
    if max_new_tokens < 0 or temperature < 0 or (top_k is not None and top_k < 1):
        given = f"max_new_tokens {max_new_tokens}, temperature {temperature}, top_k {top_k}"
        raise BadInput(f"{given}: the first two must be at least 0, the third at least 1")
    B, S = tokens_BS.shape
    cache = model.new_cache(B, S + max_new_tokens)
    found, new = [tokens_BS], tokens_BS
    for _ in range(max_new_tokens):
        logits_BV = model(new, cache=cache, last_only=True).logits_BSV[:, -1]
        new = _choose(logits_BV.float(), temperature, top_k, generator)
        found.append(new)
    return torch.cat(found, dim=1)


def _choose(logits_BV: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token for each row, (B, 1)."""
    if temperature == 0:
        return logits_BV.argmax(dim=-1, keepdim=True)
    if top_k is not None and top_k < logits_BV.shape[-1]:
        kth_B1 = logits_BV.topk(top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)
    return torch.multinomial((logits_BV / temperature).softmax(dim=-1), 1, generator=generator)
