"""Rotary position embeddings.

Shapes: B rows, S tokens in a row, N heads, D head size.
Source: arXiv 2104.09864; pairs are (i, i + D/2), as in GPT-NeoX and the Hugging Face models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from smelt_match.model.precision import is_eager_float


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
        cos, sin = angles.cos(), angles.sin()
        self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def turn(self, x_BSND: Tensor) -> Tensor:
        """Rotate queries or keys by their positions, in float32."""
        if is_eager_float(x_BSND):
            found: Tensor = _Turn.apply(x_BSND, self.cos, self.sin)  # type: ignore[no-untyped-call]
            return found
        return (x_BSND * self.cos + _swapped(x_BSND) * self.sin).to(x_BSND.dtype)


def _swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1)


class _Turn(torch.autograd.Function):
    """A rotation in three passes over memory; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(..., D) to the same shape."""
        ctx.save_for_backward(cos, sin)
        return (x * cos).addcmul_(_swapped(x), sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of x."""
        cos, sin = ctx.saved_tensors
        return (dy * cos).addcmul_(_swapped(dy), sin, value=-1), None, None
