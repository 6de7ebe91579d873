"""A learning rate for each point: the best of a small grid in short runs, extended once where it is at an edge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt_match.ablate.folder import arm_folder
from smelt_match.ablate.run import Finished, run
from smelt_match.ablate.short import SEED
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import AnswerIsNo
from tests.ablate.conftest import Inline

Build = Callable[..., Sweep]


def go(sweep: Sweep, folder: Path, launcher: Inline | None = None) -> Finished:
    return run(sweep, folder, launcher or Inline(), lambda _: None)


def config(folder: Path, arm: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((arm_folder(folder, arm) / "run.json").read_text())
    return found


def test_each_point_is_trained_at_the_best_of_its_rates(sweep: Build, tmp_path: Path, inline: Inline) -> None:
    folder = tmp_path / "s"
    finished = go(sweep(text="1-2", lr_sweep=True), folder, inline)
    one, two = (finished.rates[f"nano_s85-count-{visits}"] for visits in (1, 2))
    assert (one.value, list(one.losses), one.at_edge) == (1e-3, [5e-4, 1e-3, 2e-3], False)
    assert min(two.losses, key=lambda rate: two.losses[rate]) == two.value > one.value
    for point, rate in (("count-1", one.value), ("count-2", two.value)):
        for seed in (0, 1):
            assert config(folder, f"nano_s85-{point}-seed{seed}")["learning_rate"] == rate
    short = json.loads((folder / "rates" / "nano_s85-count-1-rate-x2" / "run.json").read_text())
    assert (short["seed"], short["steps"], short["learning_rate"]) == (SEED, 10, 2e-3)


@pytest.mark.parametrize(
    ("shared", "tried", "value", "at_edge"),
    [
        (4e-3, [1e-3, 2e-3, 4e-3, 8e-3], 1e-3, True),
        (2e-3, [5e-4, 1e-3, 2e-3, 4e-3], 1e-3, False),
        (5e-4, [2.5e-4, 5e-4, 1e-3, 2e-3], 1e-3, False),
        (1e-4, [5e-5, 1e-4, 2e-4, 4e-4], 4e-4, True),
    ],
)
def test_a_grid_whose_best_is_at_an_edge_is_extended_once(
    sweep: Build, tmp_path: Path, shared: float, tried: list[float], value: float, at_edge: bool
) -> None:
    found = go(sweep(text="1-2", seeds=1, lr_sweep=True, learning_rate=shared), tmp_path / "s").rates
    one = found["nano_s85-count-1"]
    assert (list(one.losses), one.value, one.at_edge) == (tried, value, at_edge)


def test_what_is_there_is_read_and_what_is_missing_is_trained(sweep: Build, tmp_path: Path) -> None:
    asked, folder = sweep(text="1-2", seeds=1, lr_sweep=True), tmp_path / "s"
    first = go(asked, folder)
    again = Inline()
    assert go(asked, folder, again) == first
    assert again.ran == []
    (folder / "rates" / "nano_s85-count-1-rate-x1" / "ablation.json").unlink()
    once_more = Inline()
    assert go(asked, folder, once_more) == first
    assert once_more.ran == ["nano_s85-count-1-rate-x1"]


class Failing(Inline):
    """Runs whose names end in one of some endings fail."""

    def __init__(self, *endings: str) -> None:
        super().__init__()
        self.endings = endings

    def run(self, folders: Any, told: Any) -> None:
        for folder in folders:
            if folder.name.endswith(self.endings):
                (folder.parent / f"{folder.name}.mood").write_text("bad input")
        super().run(folders, told)


def test_a_rate_that_diverges_loses_and_is_no_edge(sweep: Build, tmp_path: Path) -> None:
    asked = sweep(text="1-2", seeds=1, lr_sweep=True, learning_rate=5e-4)
    one = go(asked, tmp_path / "s", Failing("x2")).rates["nano_s85-count-1"]
    assert (list(one.losses), one.value, one.at_edge) == ([2.5e-4, 5e-4], 5e-4, False)


def test_a_point_whose_rates_all_fail_is_an_answer(sweep: Build, tmp_path: Path) -> None:
    asked = sweep(text="1-2", seeds=1, lr_sweep=True)
    with pytest.raises(AnswerIsNo, match=r"no run of its learning rates 0.0005, 0.001, 0.002 has a result"):
        go(asked, tmp_path / "s", Failing("x0.5", "x1", "x2"))


def test_the_match_that_a_shortlist_chose_is_the_one_that_is_rated(sweep: Build, tmp_path: Path) -> None:
    finished = go(sweep(text="3", seeds=1, top=4, lr_sweep=True), tmp_path / "s")
    chosen = finished.choices["nano_s85-count-3"].candidate.spec.hidden_size
    short = json.loads((tmp_path / "s" / "rates" / "nano_s85-count-3-rate-x1" / "run.json").read_text())
    assert short["spec"]["hidden_size"] == chosen
