"""Arms as tasks of Ray, where it is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from smelt_match.ablate.folder import failure, state, write_run
from smelt_match.ablate.ray import Ray
from smelt_match.errors import MissingExtra
from tests.ablate.conftest import run_of
from tests.ablate.trainers import moody


def test_arms_are_tasks_and_one_that_dies_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    places = [tmp_path / f"arm{seed}" for seed in range(3)]
    for seed, place in enumerate(places):
        write_run(place, run_of(seed=seed))
    (tmp_path / "arm0.mood").write_text("bad input")
    launcher = Ray(1, moody)
    try:
        launcher.run(places, lambda _: None)
    finally:
        launcher.close()
    assert [state(place) for place in places] == ["failed", "done", "done"]
    assert failure(places[0]) == "loss is nan at step 7; lower the rate"


def test_an_installation_without_ray_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra) as caught:
        Ray(1, moody)
    assert caught.value.hint == "pip install 'smelt-match[ray]'"
