"""AdamW over a model's weights, and its state as named tensors.

Source: arXiv 1711.05101. Which weights decay: `smelt_match.model.parameters.decays`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smelt_match.model.loop import LoopedTransformer
from smelt_match.model.parameters import decay_groups
from smelt_match.train.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW whose state exists from the start, so that a checkpoint can be read into it in place.

    Args:
        model: Its weights, sharded already where they are.
        config: Betas, epsilon, weight decay, and the norm that gradients are clipped to.
    """

    def __init__(self, model: LoopedTransformer, config: TrainConfig) -> None:
        self.model, self.clip_norm = model, config.clip_norm
        groups = [group for group in decay_groups(model, config.weight_decay) if group["params"]]
        self.adamw = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True
        )
        for parameter in self._parameters():
            moments = {name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in MOMENTS}
            self.adamw.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in self.adamw.param_groups:
            yield from group["params"]

    def tensors(self) -> dict[str, Tensor]:
        """Both moments of each weight, by names of their own; the tensors themselves, no copies."""
        return {
            f"{moment}.{name}": self.adamw.state[parameter][moment]
            for name, parameter in self.model.named_parameters()
            for moment in MOMENTS
        }

    def count_from(self, steps: int) -> None:
        """Go on as after so many steps: the moments' bias correction depends on it."""
        for parameter in self._parameters():
            self.adamw.state[parameter]["step"].fill_(steps)

    def clip(self) -> Tensor:
        """Clip the gradients; their total norm before that, over all ranks."""
        norm: Any = nn.utils.clip_grad_norm_(self._parameters(), self.clip_norm)
        return full(norm)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()

    @property
    def learning_rate(self) -> float:
        """What the last step applied."""
        return float(self.adamw.param_groups[0]["lr"])

    def forget_gradients(self) -> None:
        """Free the gradients: the next backward pass writes its own instead of adding to zeros."""
        self.adamw.zero_grad(set_to_none=True)


def full(value: Any) -> Tensor:
    """A tensor with all of its shards, on every rank."""
    found = value.full_tensor() if hasattr(value, "full_tensor") else value
    assert isinstance(found, Tensor)
    return found.detach()
