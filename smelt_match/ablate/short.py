"""Short runs: what a sweep decides before it trains anything in full, by a tenth of the tokens.

Every short run is a run of its own in a folder of its own, so that one that is there is read and not trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from smelt_match.ablate.folder import STOPPED, state, write_run
from smelt_match.ablate.launch import Launcher, Told
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.result import read_result
from smelt_match.ablate.sweep import arm_of
from smelt_match.errors import AnswerIsNo
from smelt_match.train.config import TrainConfig
from smelt_match.train.defaults import warmup_steps
from smelt_match.train.schedule import default_branch_steps

SHORT = 10  # a short run is the tenth part of a full one
RUNGS = (1, 2, 4)  # quarters of it
SEED = 2**20  # of no arm, so that none trains on the order of tokens that chose it
Found = TypeVar("Found")


def short_training(training: TrainConfig, rung: int = RUNGS[-1]) -> TrainConfig:
    """A run to a rung: a schedule of its own over fewer tokens, with one branch at its end."""
    steps = max(1, training.steps * rung // (SHORT * RUNGS[-1]))
    changes = {
        "steps": steps, "forks": (steps,), "branch_steps": default_branch_steps(steps),
        "warmup_steps": warmup_steps(steps),
    }  # fmt: skip
    return training.model_copy(update=changes)


def short_run(point: Point, candidate: Candidate, training: TrainConfig, name: str) -> TrainConfig:
    """The run of a match with the seed of all short runs."""
    return arm_of(point, candidate, SEED, training, name).config


def losses(folder: Path, runs: Mapping[str, TrainConfig], launcher: Launcher, told: Told) -> dict[str, float]:
    """The validation losses of runs by name; those that fail are left out. What has no result yet is trained.

    Raises:
        AnswerIsNo: A run was stopped, so that nothing can be decided yet.
    """
    places = {name: folder / name for name in runs}
    for name, place in places.items():
        write_run(place, runs[name])
    missing = [place for place in places.values() if read_result(place) is None]
    if missing:
        launcher.run(missing, told)
        for place in missing:
            if state(place) == "stopped":
                raise AnswerIsNo(f"{place.name}: {STOPPED}", "the same command goes on")
    results = {name: read_result(place) for name, place in places.items()}
    return {name: result.horizons[-1].loss for name, result in results.items() if result is not None}


def side_by_side(points: Sequence[Point], call: Callable[[Point], Found], launcher: Launcher) -> dict[str, Found]:
    """What a call finds at each point, by the point's name; the points at the same time."""
    if not points:
        return {}
    with ThreadPoolExecutor(len(points)) as pool:
        futures = {point.name: pool.submit(call, point) for point in points}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            launcher.close()  # so that the other points' threads end
            raise
