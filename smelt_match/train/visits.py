"""What each visit did in a step: its update, its load, and the gradients of the blocks.

Shapes: B rows, S tokens in a row, H width, E experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smelt_match.model.feed_forward import Balance
from smelt_match.model.loop import LoopedTransformer
from smelt_match.train.optimizer import full
from smelt_match.train.world import World


class VisitRecorder:
    """Adds up, over the micro-batches of a step, what each visit did to the residual stream.

    It is called with each visit's number from 0, the stream before and after it, and how it used its experts.
    """

    def __init__(self, model: LoopedTransformer) -> None:
        self.visits = model.visits
        self.squares: dict[int, Tensor] = {}
        self.loads: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, visit: int, before_BSH: Tensor, after_BSH: Tensor, balance: Balance | None) -> None:
        """Note one visit."""
        before, after = before_BSH.detach().float(), after_BSH.detach().float()
        elements = torch.tensor(float(before.numel()), device=before.device)
        squares = torch.stack(((after - before).square().sum(), after.square().sum(), elements))
        self.squares[visit] = self.squares[visit] + squares if visit in self.squares else squares
        if balance is not None:
            load_E = balance.load_E.detach().float()
            self.loads[visit] = self.loads[visit] + load_E if visit in self.loads else load_E

    def summary(self, world: World) -> dict[str, Any]:
        """A line for each visit, over all ranks.

        ``update_rms`` and ``state_rms``: root mean square of an element of the visit's update, and of the stream after
        it. ``load_max``: assignments to the busiest expert over those of the mean one; ``load_unused``: the share of
        experts without a token.
        """
        lines = []
        for visit, block in enumerate(self.visits):
            update, state, elements = world.total(self.squares[visit]).tolist()
            line: dict[str, Any] = {
                "visit": visit,
                "block": block,
                "update_rms": (update / elements) ** 0.5,
                "state_rms": (state / elements) ** 0.5,
            }
            if visit in self.loads:
                load_E = world.total(self.loads[visit])
                line["load_max"] = float(load_E.max() / load_E.mean())
                line["load_unused"] = float((load_E == 0).float().mean())
            lines.append(line)
        return {"visits": lines}


@torch.no_grad()
def gradient_norms(model: LoopedTransformer) -> list[float]:
    """The norm of each block's gradient, over all of its visits and before clipping."""
    norms = []
    for block in model.blocks:
        gradients = [parameter.grad for parameter in block.parameters() if parameter.grad is not None]
        norms.append(full(torch.nn.utils.get_total_norm(gradients)))
    return torch.stack(norms).tolist()
