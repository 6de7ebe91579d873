"""The prepared GPU run's training section, on small models and this machine's CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.tiny import tiny

FILE = Path(__file__).parent.parent.parent / "benchmarks" / "gpu_train.py"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_loss_resume_and_compile_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.spec_from_file_location("gpu_train", FILE)
    assert found is not None
    assert found.loader is not None
    section: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(section)
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_(self, backend="eager"))
    torch._dynamo.reset()
    checked = section.check_pair(
        tmp_path, 10, "cpu", [tiny("mid50x2", vocab_size=None, num_layers=2)], context=32, rows=2, micro_rows=2,
        dtype="float32", learning_rate=0.02, validation_tokens=64,
    )  # fmt: skip
    assert section.failures(checked) == []
    assert checked["tiny"]["resumed_apart"] == 0
    checked["tiny"]["compile agrees"] = False
    assert section.failures(checked) == ["tiny: compile agrees"]
    torch._dynamo.reset()
