"""The router: which experts a token goes to, with which weights, and how evenly.

Shapes: T tokens, H width, E experts, K experts of each token.
Source: softmax before top-k and the balancing loss as in Switch (arXiv 2101.03961, Eq. 4 to 6) and OLMoE
(arXiv 2409.02060, Sec. 2); the bias that balances without a loss, arXiv 2408.15664 and DeepSeek-V3
(arXiv 2412.19437, Sec. 2.1.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smelt_match.model.precision import without_autocast
from smelt_match.spec.model import ModelSpec


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        weights_TK: Float32 weights of the chosen experts.
        experts_TK: The chosen experts, int64.
        load_E: Assignments to each expert, int64; their sum is T·K.
        loss: The load-balancing loss of this visit, without a coefficient: 1 when experts are equally probable.
    """

    weights_TK: Tensor
    experts_TK: Tensor
    load_E: Tensor
    loss: Tensor


@torch.library.custom_op("smelt_match::top", mutates_args=())
def _top(scores_TE: Tensor, K: int) -> Tensor:
    """The K experts of each token with the highest scores, in any order.

    On a CPU, NumPy sorts rows with vector instructions; who is at least the K-th is found in less than half of the
    time of torch's selection. Equal scores there may let in more than K, and torch then chooses among them.
    """
    if scores_TE.is_cpu:
        scores = scores_TE.numpy()
        kth = np.sort(scores, axis=1)[:, -K, None]
        chosen = np.flatnonzero(scores >= kth)
        if len(chosen) == len(scores) * K:
            return torch.from_numpy(chosen).remainder_(scores_TE.shape[1]).view(-1, K)
    return scores_TE.topk(K, sorted=False).indices


@_top.register_fake
def _(scores_TE: Tensor, K: int) -> Tensor:
    return scores_TE.new_empty((scores_TE.shape[0], K), dtype=torch.int64)


class Router(nn.Module):
    """A linear map to expert logits, softmax, and the K most probable experts.

    Probabilities are float32 whatever the model's dtype: rounding there changes the choice of experts (Switch,
    Sec. 2.4, "selective precision").

    Args:
        spec: The model. ``normalize_topk`` says whether a token's K weights are rescaled to sum to 1.
        balance: ``loss``, or ``bias``: a bias for each expert joins the selection, never the weights, and
            `update_bias` moves it by the sign of the load error. Steps of 0.001 are lost in a bf16 model; keep
            weights in float32 and train under autocast.
    """

    bias_E: Tensor
    load_E: Tensor

    def __init__(self, spec: ModelSpec, balance: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.num_experts, spec.hidden_size))
        self.bias = nn.Parameter(torch.empty(spec.num_experts)) if spec.router_bias else None
        self.experts_per_token, self.normalize = spec.experts_per_token, spec.normalize_topk
        self.balance = balance
        if balance == "bias":
            self.register_buffer("bias_E", torch.zeros(spec.num_experts))
            self.register_buffer("load_E", torch.zeros(spec.num_experts, dtype=torch.int64), persistent=False)

    def forward(self, x_TH: Tensor) -> Routing:
        """Route tokens."""
        with without_autocast(x_TH):
            bias = None if self.bias is None else self.bias.float()
            probs_TE = F.linear(x_TH.float(), self.weight.float(), bias).softmax(dim=-1)
        scores_TE = probs_TE + self.bias_E if self.balance == "bias" else probs_TE
        experts_TK = _top(scores_TE.detach(), self.experts_per_token)
        weights_TK = probs_TE.gather(1, experts_TK)
        if self.normalize:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        flat = experts_TK.flatten()
        load_E = torch.zeros_like(probs_TE[0], dtype=torch.int64).scatter_add(0, flat, torch.ones_like(flat))
        return Routing(weights_TK, experts_TK, load_E, self._loss(probs_TE, load_E))

    def _loss(self, probs_TE: Tensor, load_E: Tensor) -> Tensor:
        """E · Σ_e (share of assignments) · (mean probability); 0 where the bias balances."""
        if self.balance == "bias":
            return probs_TE.new_zeros(())
        share_E = load_E / (probs_TE.shape[0] * self.experts_per_token)
        return len(load_E) * (share_E * probs_TE.mean(dim=0)).sum()

    def count(self, load_E: Tensor) -> None:
        """Add a visit's load to what the next `update_bias` looks at."""
        self.load_E += load_E

    @torch.no_grad()
    def update_bias(self, rate: float) -> None:
        """Raise the bias of underloaded experts by ``rate`` and lower that of overloaded ones; forget the load."""
        load_E = self.load_E.float()
        self.bias_E += rate * torch.sign(load_E.mean() - load_E)
        self.load_E.zero_()
