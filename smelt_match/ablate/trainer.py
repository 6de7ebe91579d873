"""The seam to the trainer: what a sweep asks of it, and nothing else."""

from __future__ import annotations

from pathlib import Path

from smelt_match.ablate.extent import Extent
from smelt_match.ablate.launch import Told
from smelt_match.ablate.result import ArmResult
from smelt_match.spec.model import ModelSpec
from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.shards import Shards


def training(
    spec: ModelSpec, shards: Shards, extent: Extent, learning_rate: float | None = None, dtype: str | None = None
) -> TrainConfig:
    """The run of a sweep's first baseline, which all its arms share but for model and seed."""
    return plan_run(
        spec, shards, extent.tokens_trunk, extent.forks, context=extent.context, rows=extent.rows,
        branch_steps=extent.branch_steps, learning_rate=learning_rate, dtype=dtype,
    )  # fmt: skip


def train_arm(config: TrainConfig, folder: Path) -> ArmResult:
    """Train a run in its folder, from where it was left, and read what it reached."""
    raise NotImplementedError


def built_in(extent: Extent, folder: Path, told: Told) -> Path:
    raise NotImplementedError
