"""Sweeps over nano with a run that nobody trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from smelt_match.ablate.launch import Told
from smelt_match.ablate.points import Point, points
from smelt_match.ablate.sweep import Sweep
from smelt_match.ablate.variants import Kind
from smelt_match.ablate.work import work
from smelt_match.budget.conventions import convention
from smelt_match.match.grid import find_grid
from smelt_match.spec.family import countable, expand
from smelt_match.train.config import TrainConfig
from tests.ablate.trainers import moody

Points = Callable[..., list[Point]]


class Inline:
    """A launcher that works in this process, one arm after the other."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.closed = False

    def run(self, folders: Sequence[Path], told: Told) -> None:
        for folder in folders:
            self.ran.append(folder.name)
            told(f"{folder.name}: {'done' if work(folder, moody) else 'failed'}")

    def close(self) -> None:
        self.closed = True


def points_of(kind: Kind, name: str = "nano_s85", text: str | None = None, **fields: Any) -> list[Point]:
    """The points of a sweep around a shipped baseline, on its family's grid."""
    entry = expand(name)[0]
    grid = find_grid(fields.pop("grid", None) or entry.grid or "bf16")
    return points(kind, countable(entry), convention("paper"), grid, text=text, **fields)


def run_of(**fields: Any) -> TrainConfig:
    """The run that all arms share."""
    given: dict[str, Any] = {
        "spec": countable(expand("nano_s85")[0]).changed(vocab_size=257), "corpus": "corpus", "corpus_digest": "0" * 64,
        "context": 128, "rows": 1, "micro_rows": 1, "steps": 100, "forks": (100,), "branch_steps": 5,
        "learning_rate": 1e-3, "warmup_steps": 10, "validation_tokens": 4096,
    }  # fmt: skip
    return TrainConfig(**{**given, **fields})


@pytest.fixture
def sweep() -> Callable[..., Sweep]:
    """A sweep by kind: ``sweep("count", text="1-3", seeds=2)``."""

    def build(
        kind: Kind = "count",
        text: str | None = "1-3",
        seeds: int = 2,
        top: int = 1,
        heads: Any = "uniform",
        lr_sweep: bool = False,
        **run: Any,
    ) -> Sweep:
        found = points_of(kind, text=text, top=top, heads=heads)
        return Sweep(kind, tuple(found), heads, seeds, run_of(**run), top, lr_sweep)

    return build


@pytest.fixture
def inline() -> Inline:
    """A launcher that works in this process."""
    return Inline()
