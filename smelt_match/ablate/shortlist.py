"""Which match of a point to train: the first K compete in short runs, and Optuna ends the hopeless ones early.

Successive halving (Jamieson and Talwalkar, arXiv 1502.07943; asynchronous: Li et al., arXiv 1810.05934): a match whose
loss at a quarter or a half of the short run is not in the better half of those before it goes no further. Matches run
in the solver's order, so that the same folders give the same choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt_match.ablate.folder import write_run
from smelt_match.ablate.launch import Launcher, Told
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.result import read_result
from smelt_match.ablate.sweep import Sweep, arm_of
from smelt_match.errors import AnswerIsNo
from smelt_match.train.config import TrainConfig
from smelt_match.train.defaults import warmup_steps
from smelt_match.train.schedule import default_branch_steps

SHORT = 10  # a short run is the tenth part of a full one
RUNGS = (1, 2, 4)  # quarters of it
SEED = 2**20  # of no arm, so that none trains on the order of tokens that chose it


@dataclass(frozen=True)
class Choice:
    """What the short runs of a point say.

    Attributes:
        candidate: The match that goes the full length.
        losses: By rank, the losses at the rungs that it reached.
    """

    candidate: Candidate
    losses: Mapping[int, tuple[float, ...]]


class _Lost(Exception):
    """A short run left no result."""


def choose(sweep: Sweep, folder: Path, launcher: Launcher, told: Told) -> dict[str, Choice]:
    """The choice at every point that has more than one match, points side by side.

    Raises:
        AnswerIsNo: No match of a point could be trained at all.
    """
    open_points = [point for point in sweep.points if len(point.candidates) > 1]
    if not open_points:
        return {}
    with ThreadPoolExecutor(len(open_points)) as pool:
        futures = {
            point.name: pool.submit(choose_one, point, sweep.training, folder / "shortlist", launcher, told)
            for point in open_points
        }
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            launcher.close()  # so that the other points' threads end
            raise


def choose_one(point: Point, training: TrainConfig, folder: Path, launcher: Launcher, told: Told) -> Choice:
    """The best of a point's matches in short runs, of those that are not pruned."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2, min_early_stopping_rate=0)
    study = optuna.create_study(direction="minimize", pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0))
    for candidate in point.candidates:
        study.enqueue_trial({"rank": candidate.rank})

    def objective(trial: Any) -> float:
        rank = trial.suggest_int("rank", 1, len(point.candidates))
        loss = float("nan")
        for rung in RUNGS:
            loss = _short_run(point, point.candidates[rank - 1], rung, training, folder, launcher, told)
            trial.report(loss, rung)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study.optimize(objective, n_trials=len(point.candidates), catch=(_Lost,))
    losses = {t.params["rank"]: tuple(t.intermediate_values[r] for r in sorted(t.intermediate_values))
              for t in study.trials}  # fmt: skip
    if not any(trial.state.name == "COMPLETE" for trial in study.trials):
        raise AnswerIsNo(f"{point.name}: none of its {len(point.candidates)} matches could be trained", f"see {folder}")
    best = study.best_trial.params["rank"]
    told(f"{point.name}: match {best} of {len(point.candidates)} goes the full length")
    return Choice(point.candidates[best - 1], losses)


def short_training(training: TrainConfig, rung: int) -> TrainConfig:
    """A run to a rung: a schedule of its own over fewer tokens, with one branch at its end."""
    steps = max(1, training.steps * rung // (SHORT * RUNGS[-1]))
    changes = {
        "steps": steps, "forks": (steps,), "branch_steps": default_branch_steps(steps),
        "warmup_steps": warmup_steps(steps),
    }  # fmt: skip
    return training.model_copy(update=changes)


def _short_run(
    point: Point, candidate: Candidate, rung: int, training: TrainConfig, folder: Path, launcher: Launcher, told: Told
) -> float:
    name = f"{point.name}-match{candidate.rank}-rung{rung}"
    place = folder / name
    write_run(place, arm_of(point, candidate, SEED, short_training(training, rung), name).config)
    result = read_result(place)
    if result is None:
        launcher.run([place], told)
        result = read_result(place)
    if result is None:
        raise _Lost(name)
    return result.horizons[-1].loss
