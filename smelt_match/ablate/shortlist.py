"""Which match of a point to train: the first K compete in short runs, and Optuna ends the hopeless ones early.

Successive halving (Jamieson and Talwalkar, arXiv 1502.07943; asynchronous: Li et al., arXiv 1810.05934): a match whose
loss at a quarter or a half of the short run is not in the better half of those before it goes no further. Matches run
in the solver's order, so that the same folders give the same choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt_match.ablate.folder import SHORTLIST
from smelt_match.ablate.launch import Launcher, Told
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.short import RUNGS, losses, short_run, short_training, side_by_side
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import AnswerIsNo
from smelt_match.train.config import TrainConfig


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
    place = folder / SHORTLIST
    return side_by_side(open_points, lambda point: choose_one(point, sweep.training, place, launcher, told), launcher)


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
    reached = {t.params["rank"]: tuple(t.intermediate_values[r] for r in sorted(t.intermediate_values))
               for t in study.trials}  # fmt: skip
    if not any(trial.state.name == "COMPLETE" for trial in study.trials):
        raise AnswerIsNo(f"{point.name}: none of its {len(point.candidates)} matches could be trained", f"see {folder}")
    best = study.best_trial.params["rank"]
    told(f"{point.name}: match {best} of {len(point.candidates)} goes the full length")
    return Choice(point.candidates[best - 1], reached)


def _short_run(
    point: Point, candidate: Candidate, rung: int, training: TrainConfig, folder: Path, launcher: Launcher, told: Told
) -> float:
    name = f"{point.name}-match{candidate.rank}-rung{rung}"
    run = short_run(point, candidate, short_training(training, rung), name)
    found = losses(folder, {name: run}, launcher, told)
    if name not in found:
        raise _Lost(name)
    return found[name]
