"""The seam to the trainer: what a sweep asks of it, and nothing else. torch is loaded by what runs a model."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from smelt_match.ablate.extent import Extent
from smelt_match.ablate.result import ArmResult, Horizon, SourceLoss
from smelt_match.spec.model import ModelSpec
from smelt_match.train.batches import batch
from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.shards import Shards
from smelt_match.train.stop import Asked, never

SECONDS_BETWEEN_LINES = 5.0


def training(
    spec: ModelSpec,
    shards: Shards,
    extent: Extent,
    learning_rate: float | None = None,
    dtype: str | None = None,
    validation_tokens: int | None = None,
) -> TrainConfig:
    """The run of a sweep's first baseline, which all its arms share but for model and seed.

    Args:
        spec: The baseline; its size sets the learning rate where none is given.
        shards: The corpus.
        extent: How long.
        learning_rate: The trunk's constant rate.
        dtype: ``float32`` or ``bfloat16``; default: bfloat16 on a GPU.
        validation_tokens: The most of each source that a validation reads.
    """
    from smelt_match.train.world import default_device

    device = default_device()
    return plan_run(
        spec, shards, extent.tokens_trunk, extent.forks, context=extent.context, rows=extent.rows,
        branch_steps=extent.branch_steps, learning_rate=learning_rate, device=device,
        validation_tokens=validation_tokens,
        dtype=dtype or ("bfloat16" if device == "cuda" else "float32"),
    )  # fmt: skip


def here(config: TrainConfig) -> TrainConfig:
    """A run on the device of this process, which may not be that of the process which planned it."""
    from smelt_match.train.world import default_device

    return config.model_copy(update={"device": default_device()})


def train_arm(config: TrainConfig, folder: Path, asked_to_stop: Asked = never) -> ArmResult:
    """Train a run in its folder, from where it was left, and read what each of its branches reached.

    Raises:
        Stopped: That was asked. Training it again goes on after the step that was saved.
    """
    from smelt_match.train.progress import Progress
    from smelt_match.train.run import train_run

    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES or progress.step == progress.steps:
            last = now
            print(progress, flush=True)

    results = train_run(here(config), folder, report, asked_to_stop=asked_to_stop)
    ends = [end for end in results if end.leg.fork is not None]
    horizons = [
        Horizon(
            tokens=end.tokens,
            sources=[
                SourceLoss(source=s.name, category=s.category, tokens=s.tokens, bytes=s.bytes, nats=s.nats)
                for s in end.validation.sources
            ],
        )
        for end in ends
    ]
    return ArmResult(horizons=horizons, tokens_digest=tokens_digest(config, Shards.open(Path(config.corpus))))


def tokens_digest(config: TrainConfig, shards: Shards) -> str:
    """What a run read, by its first and last batch of each leg and by what decides all between them."""
    pools = [(shards.trunk, config.steps), *((shards.branch, config.branch_steps) for _ in config.forks[:1])]
    read = [shards.digest, str(config.seed), str(config.context), str(config.rows), str(config.forks)]
    for pool, steps in pools:
        ends = (batch(pool, config.seed, step, config.rows, config.context).digest for step in (0, steps - 1))
        read += [pool.name, *ends]
    return hashlib.sha256("\n".join(read).encode()).hexdigest()
