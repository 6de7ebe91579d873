"""The model, its optimizer, and one training step.

Shapes: B rows, S tokens of a context, V vocabulary, E experts.

A step minimises

    mean over tokens of the cross-entropy  +  coefficient · mean over micro-batches of the balancing loss

where the micro-batches are those of all ranks. The balancing loss is a product of means over a micro-batch's tokens, so
that it depends on how a batch is cut, and not on which rank has which piece (as in Megatron-LM; arXiv 2501.11873
compares it with balancing over the whole batch). The cross-entropy does not depend on the cut.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from smelt_match.errors import BadInput
from smelt_match.model.initial import initialize
from smelt_match.model.loop import LoopedTransformer
from smelt_match.train.batches import IGNORE, Batch
from smelt_match.train.config import TrainConfig
from smelt_match.train.optimizer import Optimizer
from smelt_match.train.visits import VisitRecorder, gradient_norms
from smelt_match.train.world import World


@dataclass(frozen=True)
class Step:
    """What a step measured, before its update.

    Attributes:
        loss: Mean cross-entropy of a token in nats, over all ranks, the balancing loss not included.
        balance_loss: Mean balancing loss without its coefficient; 1 where experts are equally probable.
        gradient_norm: Total norm before clipping.
        learning_rate: What the optimizer applied.
        diagnostics: By visit and block, where they were asked for.
    """

    loss: float
    balance_loss: float
    gradient_norm: float
    learning_rate: float
    diagnostics: dict[str, Any] | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the gradients are numbers; if not, the step changed no weight."""
        return all(value - value == 0 for value in (self.loss, self.balance_loss, self.gradient_norm))


class Engine:
    """A model in training.

    Weights start from the run's seed, on the CPU in float32, the same on every device and any number of ranks.

    Raises:
        BadInput: The ranks do not divide the micro-batches of a step.
    """

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self.pieces = pieces_of(config, world)
        self.model = build_model(config).to(world.device)
        world.shard(self.model)
        if config.compile:
            self.model.compile_blocks()
        self.optimizer = Optimizer(self.model, config)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by name: the tensors themselves, no copies."""
        weights = {f"weight.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return weights | self.optimizer.tensors()

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of products: autocast for bfloat16; weights and their updates are float32 always."""
        if self.config.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)

    def step(self, batch: Batch, learning_rate: float, diagnose: bool = False) -> Step:
        """Train on this rank's rows of a batch.

        Args:
            batch: Its micro-batches are consecutive rows.
            learning_rate: To apply.
            diagnose: Whether to measure visits and blocks.
        """
        self.model.train()
        recorder = VisitRecorder(self.model) if diagnose else None
        losses = self._backward(batch, recorder)
        loss, balance_loss = (self.world.total(losses) / self.world.size).tolist()
        diagnostics = None
        if recorder is not None:
            diagnostics = recorder.summary(self.world) | {"gradient_norms": gradient_norms(self.model)}
        norm = float(self.optimizer.clip())
        step = Step(loss, balance_loss, norm, learning_rate, diagnostics)
        if step.is_finite:
            self.optimizer.step(learning_rate)
            step = replace(step, learning_rate=self.optimizer.learning_rate)
            if self.config.balance == "bias":
                self._move_bias()
        self.optimizer.forget_gradients()
        return step

    def _backward(self, batch: Batch, recorder: VisitRecorder | None) -> Tensor:
        """Gradients of this rank's share; (cross-entropy, balancing loss) of it."""
        micro, coefficient = self.config.micro_rows, self.config.balance_coefficient
        losses = torch.zeros(2, device=self.world.device)
        for piece in range(self.pieces):
            part = batch.rows(piece * micro, (piece + 1) * micro)
            nats, balance = self.forward(part, recorder)
            nats, balance = nats / batch.num_targets, balance / self.pieces
            (nats + coefficient * balance).backward()  # type: ignore[no-untyped-call]
            losses += torch.stack((nats.detach(), balance.detach()))
        return losses

    def forward(self, batch: Batch, recorder: VisitRecorder | None = None) -> tuple[Tensor, Tensor]:
        """The summed cross-entropy of some rows in nats, and their balancing loss."""
        tokens_BS, segments_BS, targets_BS = (
            torch.from_numpy(array).to(self.world.device, non_blocking=True)
            for array in (batch.tokens_BS, batch.segment_ids_BS, batch.targets_BS)
        )
        with self.autocast():
            out = self.model(tokens_BS, segments_BS, watch=recorder)
        logits_TV = out.logits_BSV.flatten(0, 1).float()
        nats = F.cross_entropy(logits_TV, targets_BS.flatten(), ignore_index=IGNORE, reduction="sum")
        return nats, out.aux_loss

    def _move_bias(self) -> None:
        for name, buffer in self.model.named_buffers():
            if name.endswith("router.load_E"):
                self.world.total(buffer)
        self.model.update_router_bias(self.config.bias_rate)


def pieces_of(config: TrainConfig, world: World) -> int:
    """Micro-batches of a step that each rank computes.

    Raises:
        BadInput: The ranks do not divide the micro-batches of a step.
    """
    pieces = config.rows // config.micro_rows
    if pieces % world.size:
        raise BadInput(
            f"{world.size} ranks cannot share the {pieces} micro-batches of a step ({config.rows} rows in "
            f"micro-batches of {config.micro_rows})",
            "choose --rows and --micro-rows so that ranks divide rows / micro-rows",
        )
    return pieces // world.size


def build_model(config: TrainConfig) -> LoopedTransformer:
    """The run's model with its first weights, on the CPU."""
    with torch.device("meta"):
        model = LoopedTransformer(
            config.spec, balance=config.balance, checkpoint=config.recompute, residual_scale=config.residual_scale
        )
    model.to_empty(device="cpu")
    initialize(model, torch.Generator().manual_seed(config.seed))
    return model
