"""Rotary position embeddings.

Shapes: B rows, S tokens in a row, N heads, D head size.
Source: arXiv 2104.09864; pairs are (i, i + D/2), as in GPT-NeoX and the Hugging Face models.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Rotation:
    """Cosines and sines of one forward pass, shared by every visit.

    They are computed where they are used, in float32, and are no buffer: a model that was built on the meta device or
    cast to bf16 has nothing to lose.

    Args:
        positions: (S,) or (B, S), from 0 in each document.
        head_dim: D, even.
        theta: The base of the frequencies.
    """

    def __init__(self, positions: Tensor, head_dim: int, theta: float) -> None:
        exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
        angles = positions.float()[..., None, None] * theta**-exponents  # (..., S, 1, D/2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def turn(self, x_BSND: Tensor) -> Tensor:
        """Rotate queries or keys by their positions, in float32."""
        cos, sin = self.cos, self.sin
        first, second = x_BSND.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_BSND.dtype)
