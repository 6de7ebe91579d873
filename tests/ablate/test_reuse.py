"""Two sweeps share points: what one has trained, the other takes over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt_match.ablate.folder import arm_folder
from smelt_match.ablate.result import RESULT
from smelt_match.ablate.reuse import ORIGIN
from smelt_match.ablate.run import run
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import BadInput
from tests.ablate.conftest import Inline

Build = Callable[..., Sweep]


def _spans(sweep: Build, count: Path, to: Path, **fields: Any) -> tuple[Inline, list[str]]:
    launcher, lines = Inline(), list[str]()
    run(sweep("span", text="0,4,8", seeds=2, **fields), to, launcher, lines.append, [count])
    return launcher, lines


@pytest.fixture
def count(sweep: Build, tmp_path: Path) -> Path:
    """A sweep of counts that is done."""
    run(sweep("count", text="1-3", seeds=2), tmp_path / "count", Inline(), lambda _: None)
    return tmp_path / "count"


def test_arms_that_are_the_same_runs_are_taken_over(sweep: Build, count: Path, tmp_path: Path) -> None:
    launcher, lines = _spans(sweep, count, tmp_path / "span")
    assert launcher.ran == ["nano_s85-span-8-seed0", "nano_s85-span-8-seed1"]
    assert sum("taken over" in line for line in lines) == 4
    ours = arm_folder(tmp_path / "span", "nano_s85-span-4-seed1")
    theirs = arm_folder(count, "nano_s85-count-2-seed1")
    assert (ours / RESULT).read_bytes() == (theirs / RESULT).read_bytes()
    assert (ours / ORIGIN).resolve() == theirs.resolve()


def test_another_run_is_not_taken_over(sweep: Build, count: Path, tmp_path: Path) -> None:
    launcher, _ = _spans(sweep, count, tmp_path / "span", learning_rate=2e-3)
    assert len(launcher.ran) == 6


def test_an_arm_without_a_result_is_trained(sweep: Build, count: Path, tmp_path: Path) -> None:
    (arm_folder(count, "nano_s85-count-2-seed1") / RESULT).unlink()
    launcher, _ = _spans(sweep, count, tmp_path / "span")
    assert "nano_s85-span-4-seed1" in launcher.ran
    assert len(launcher.ran) == 3


def test_a_folder_that_holds_no_sweep_is_refused(sweep: Build, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no sweep"):
        _spans(sweep, tmp_path, tmp_path / "span")
