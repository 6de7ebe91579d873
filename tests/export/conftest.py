"""Tiny specs whose widths transformers' grouped products accept, and checkpoints loaded as a user loads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt_match.model.loop import LoopedTransformer
from smelt_match.spec.model import ModelSpec
from tests.model.tiny import build, tiny

# The paper's kind of layout; one block twice as often as others, visited out of order; a block that follows itself.
LAYOUTS = ("none", "mid50x2", "visits 1-3,2-4,2-3", "visits 1,2,2,2,3-4")
Load = Callable[..., Any]


def aligned(layout: str = "none", **changes: Any) -> ModelSpec:
    """A tiny spec with widths of whole 16 bytes, which torch's grouped GEMM wants of transformers' experts."""
    return tiny(layout, **{"hidden_size": 16, "expert_intermediate_size": 8} | changes)


def looped(layout: str = "mid50x2", **changes: Any) -> LoopedTransformer:
    """A model of such a spec with large random weights."""
    return build(aligned(layout, **changes))


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """transformers' model of a folder, every weight of which it must have found and used; code is kept in tmp_path."""
    from transformers import AutoModelForCausalLM, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")

    def call(path: Path, **options: Any) -> Any:
        model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
        assert not any(info.values()), info
        return model

    return call
