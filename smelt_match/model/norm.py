"""Normalisation over the last dimension, in the precision of its input's kernel.

Source: RMSNorm is arXiv 1910.07467; LayerNorm (arXiv 1607.06450) serves specs whose norms have a bias.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.RMSNorm):
    """x · gain / sqrt(mean(x²) + eps), over the last dimension.

    The gain follows the dtype of the input: under autocast, queries arrive in bf16 while gains stay in float32, and
    torch's fused kernel wants them equal.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same shape and dtype."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def norm(width: int, eps: float, bias: bool) -> nn.Module:
    """The norm of a residual stream: RMSNorm, or LayerNorm where it has a bias."""
    return nn.LayerNorm(width, eps=eps) if bias else RMSNorm(width, eps=eps)
