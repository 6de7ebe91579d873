"""Small runs for tests, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.shards import Shards
from tests.model.tiny import tiny

SMALL: dict[str, Any] = {
    "context": 16, "rows": 4, "micro_rows": 2, "branches": (4, 9), "branch_steps": 3, "warmup_steps": 3,
    "learning_rate": 0.01, "validation_tokens": 64, "log_every": 1, "save_every": 2, "device": "cpu",
}  # fmt: skip


def small(shards: Shards, layout: str = "mid50x2", steps: int = 11, spec: Any = None, **changes: Any) -> TrainConfig:
    """Eleven steps of 64 tokens with two branches of three, a checkpoint every second step."""
    fields = SMALL | changes
    spec = spec or tiny(layout, vocab_size=None)
    return plan_run(spec, shards, steps * fields["rows"] * fields["context"], **fields)


def left_behind(folder: Path) -> dict[str, Any]:
    """Everything that a run computed: logs, results, weights, and every tensor of every checkpoint it kept."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = load_file(path)
        elif path.is_file() and path.name not in ("timings.jsonl", ".lock"):
            found[name] = path.read_bytes()
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Equal files and equal tensors, to the last bit."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if not isinstance(value, dict):
            assert found[name] == value, name
            continue
        assert found[name].keys() == value.keys()
        for key, tensor in value.items():
            assert _equal(found[name][key], tensor), (name, key)


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other)
