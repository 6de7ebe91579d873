"""The weights a model starts from.

Matrices and embeddings: normal with standard deviation 0.02, truncated at three of them (OLMoE, arXiv 2409.02060,
App. B; OLMo and torchtitan do the same). Matrices that write into the residual stream (attention output, down
projections): divided by sqrt(2·visits), since a token's stream receives two updates at each visit (GPT-2, Sec. 2.3,
1/sqrt(N) for N residual layers, where layers are executed ones). Gains 1, biases 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from smelt_match.model.parameters import decays

if TYPE_CHECKING:
    from smelt_match.model.loop import LoopedTransformer

STD = 0.02
CUT = 3
_WRITES = ("attention.output.weight", "experts.down", "shared.down.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialize(model: LoopedTransformer, generator: torch.Generator | None = None) -> None:
    """Set every parameter and buffer of a model anew; on the meta device, do nothing.

    Args:
        model: The model, which may have come from ``to_empty``.
        generator: Where the random numbers come from; torch's default one if None.
    """
    for buffer in model.buffers():
        buffer.zero_()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if decays(name):
            std = STD / (2 * len(model.visits)) ** 0.5 if name.endswith(_WRITES) else STD
            nn.init.trunc_normal_(parameter, 0, std, -CUT * std, CUT * std, generator=generator)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
