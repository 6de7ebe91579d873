"""The prepared GPU run: it says when there is no GPU, and every section of it runs at a tiny shape on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "gpu.py"
SECTIONS = [
    "step_time", "head_sizes", "expert_widths", "peak_memory", "decoding", "flex_attention_packed_masks",
    "bf16_grouped_gemm", "compiled_without_graph_breaks", "step_time_compiled", "training",
]  # fmt: skip


def ran(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(PROGRAM.parent.parent), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OUT": str(folder), "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, str(PROGRAM), *args], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_in_a_line_and_leaves_no_file(tmp_path: Path) -> None:
    found = ran(tmp_path)
    assert found.returncode == 3
    assert found.stderr.splitlines() == [
        "no GPU found: nothing was run; --cpu-rehearsal tries every section on the CPU"
    ]
    assert not found.stdout
    assert not list(tmp_path.iterdir())


def test_a_result_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    found = ran(tmp_path, "--cpu-rehearsal", str(tmp_path / "missing" / "gpu.json"))
    assert found.returncode == 2
    assert "missing" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_every_section_runs_in_the_rehearsal(tmp_path: Path) -> None:
    found = ran(tmp_path, "--cpu-rehearsal")
    assert found.returncode == 0, found.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["rehearsal"] is True
    assert (document["torch"], document["schema_version"]) == (torch.__version__, 1)
    assert list(document["sections"]) == SECTIONS
    assert [name for name, section in document["sections"].items() if "result" not in section] == []
    results = {name: section["result"] for name, section in document["sections"].items()}
    models = results["step_time"]["models"]
    assert list(models) == ["baseline", "uniform", "split"]
    for model in models.values():
        assert set(model["mfu"]) == {"paper", "megatron", "torchtitan", "deepseek", "6n"}
        assert model["tokens_per_second"] > 0
    assert list(results["head_sizes"]["values"]) == ["8", "16"]
    assert agreements(results) == {True}
    trained = results["training"]
    assert (trained["failures"], trained["stopped"]) == ([], None)
    assert list(trained["arms"]) == ["nano_s85", "uniform"]
    assert {arm["resumed_apart"] for arm in trained["arms"].values()} == {0}


def agreements(value: Any) -> set[bool]:
    """What the checks say, wherever they are."""
    if not isinstance(value, dict):
        return set()
    here = {value["agrees"]} if "agrees" in value else set()
    return here.union(*map(agreements, value.values()))


def test_a_section_that_fails_or_runs_out_of_time_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    import gpu

    def broken(_: object) -> dict[str, Any]:
        raise RuntimeError("out of\nmemory")

    def endless(_: object) -> dict[str, Any]:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    table = (("broken", 1, broken), ("endless", 1, endless), ("last", 29, lambda _: {"fine": True}))
    monkeypatch.setattr(gpu, "SECTIONS", table)
    monkeypatch.setattr(gpu, "TOTAL", 36.0)
    bench = gpu.Bench(torch.device("cpu"), gpu.REHEARSAL)
    document = gpu.run(bench, tmp_path / "gpu.json", gpu.time.monotonic(), True)
    assert json.loads((tmp_path / "gpu.json").read_text()) == document
    assert document["sections"]["broken"]["error"] == "RuntimeError: out of memory"
    assert document["sections"]["endless"]["error"].startswith("OutOfTime: stopped after its")
    assert document["sections"]["last"]["result"] == {"fine": True}
