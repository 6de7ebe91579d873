"""A learning rate for each point of a sweep, from short runs over a small grid.

The grid lies around the rate that all arms would share otherwise. Where its best rate is at an edge, it is extended
beyond that edge once. The rate of a point serves all its seeds. A short run is a tenth of a full one, and what is best
over few tokens need not be best over more (arXiv 2409.19913 measures that it falls with the length of the training).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smelt_match.ablate.folder import RATES
from smelt_match.ablate.launch import Launcher, Told
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.short import losses, short_run, short_training, side_by_side
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import AnswerIsNo
from smelt_match.train.config import TrainConfig

FACTORS = (0.5, 1.0, 2.0)
MOST_RATES = len(FACTORS) + 1


@dataclass(frozen=True)
class Rate:
    """What the short runs of a point say of its learning rate.

    Attributes:
        value: The rate with the lowest validation loss; of equal ones the lowest.
        losses: By rate, ascending; runs that failed, as by divergence, are not in it.
        at_edge: Whether the best is the least or the greatest of all that were tried, so that a better one may lie
            beyond.
    """

    value: float
    losses: Mapping[float, float]
    at_edge: bool


def rates(
    sweep: Sweep, chosen: Mapping[str, Candidate], folder: Path, launcher: Launcher, told: Told
) -> dict[str, Rate]:
    """The rate of every point, points side by side; of its chosen match, or of its first one.

    Raises:
        AnswerIsNo: At a point, no run of any rate has a result.
    """
    place = folder / RATES

    def find(point: Point) -> Rate:
        return rate_of(point, chosen.get(point.name, point.best), sweep.training, place, launcher, told)

    return side_by_side(sweep.points, find, launcher) if sweep.lr_sweep else {}


def rate_of(
    point: Point, candidate: Candidate, training: TrainConfig, folder: Path, launcher: Launcher, told: Told
) -> Rate:
    """The best rate of a match in short runs of the same seed."""
    tried: list[float] = []
    found: dict[float, float] = {}

    def run(factors: tuple[float, ...]) -> None:
        short = short_training(training)
        named = {f"{point.name}-rate-x{factor:g}": _rate(training, factor) for factor in factors}
        runs = {
            name: short_run(point, candidate, short.model_copy(update={"learning_rate": rate}), name)
            for name, rate in named.items()
        }
        reached = losses(folder, runs, launcher, told)
        tried.extend(named.values())
        found.update({named[name]: loss for name, loss in reached.items()})

    run(FACTORS)
    if not found:
        raise AnswerIsNo(f"{point.name}: no run of its learning rates {_listed(tried)} has a result", f"see {folder}")
    if _best(found) == min(tried):
        run((FACTORS[0] ** 2,))
    elif _best(found) == max(tried):
        run((FACTORS[-1] ** 2,))
    best = _best(found)
    told(f"{point.name}: learning rate {best:g}, of {_listed(tried)}")
    return Rate(best, dict(sorted(found.items())), best in (min(tried), max(tried)))


def _rate(training: TrainConfig, factor: float) -> float:
    return float(f"{training.learning_rate * factor:.6g}")


def _best(found: Mapping[float, float]) -> float:
    return min(found, key=lambda rate: (found[rate], rate))


def _listed(found: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in sorted(found))
