"""Normalisation over the last dimension, in the precision of its input's kernel.

Source: RMSNorm is arXiv 1910.07467; LayerNorm (arXiv 1607.06450) serves specs whose norms have a bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from smelt_match.model.precision import is_eager_float


class RMSNorm(nn.RMSNorm):
    """x · gain / sqrt(mean(x²) + eps), over the last dimension.

    The gain follows the dtype of the input: under autocast, queries arrive in bf16 while gains stay in float32, and
    torch's fused kernel wants them equal.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same shape and dtype."""
        gain = self.weight.to(x.dtype)
        if is_eager_float(x):
            found: Tensor = _InFewPasses.apply(x, gain, self.eps)  # type: ignore[no-untyped-call]
            return found
        return F.rms_norm(x, self.normalized_shape, gain, self.eps)


class _InFewPasses(torch.autograd.Function):
    """RMSNorm, forward and backward, in as few passes over memory as torch's operations allow.

    With s = 1 / sqrt(mean(x²) + eps) of a row and W its width:

        dx = s · gain · dy  -  x · s³/W · Σ(gain · dy · x)        dgain = Σ over rows of s · dy · x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """(..., W) to the same shape."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, scale)
        y: Tensor = (x * scale).mul_(gain)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of x and gain."""
        x, gain, scale = ctx.saved_tensors
        product = dy * x
        rows = product.reshape(-1, len(gain))
        dgain = rows.mT.mv(scale.reshape(-1))
        share = rows.mv(gain).reshape(scale.shape).mul_(scale.pow(3)).div_(-len(gain))
        return torch.mul(dy, gain, out=product).mul_(scale).addcmul_(x, share), dgain, None


def norm(width: int, eps: float, bias: bool) -> nn.Module:
    """The norm of a residual stream: RMSNorm, or LayerNorm where it has a bias."""
    return nn.LayerNorm(width, eps=eps) if bias else RMSNorm(width, eps=eps)
