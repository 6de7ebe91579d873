"""A sweep as a value: its points, seeds and training, the arms they make, and what tells it from another sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smelt_match.ablate.folder import SweepFile
from smelt_match.ablate.points import Candidate, Point
from smelt_match.ablate.variants import Kind
from smelt_match.match.problem import Policy
from smelt_match.train.config import HOW, TrainConfig

# What a model is called and where it came from decides nothing about its training.
NAMES = {"name", "source", "notes", "matches", "expected", "control"}


@dataclass(frozen=True)
class Arm:
    """One model to train: a match of a point with a seed.

    Attributes:
        name: Of its folder.
        point: The point it belongs to.
        config: Everything that decides its result.
    """

    name: str
    point: Point
    config: TrainConfig


@dataclass(frozen=True)
class Sweep:
    """Everything that is asked.

    Attributes:
        kind: ``span``, ``depth`` or ``count``.
        points: Of all baselines, one baseline after the other.
        heads: The head policy of every point.
        seeds: N; seeds are 0 to N − 1.
        training: The run of the first baseline with the first seed; every arm is this run with its own model and seed,
            so that all share the corpus, the batches, the schedule and, without ``lr_sweep``, the learning
            rate.
        shortlist: Matches of each point that compete in short runs; 1 where the first match is taken as it is.
        lr_sweep: Whether each point has a learning rate of its own, from short runs around that of ``training``.
    """

    kind: Kind
    points: tuple[Point, ...]
    heads: Policy
    seeds: int
    training: TrainConfig
    shortlist: int = 1
    lr_sweep: bool = False

    @property
    def question(self) -> dict[str, Any]:
        """What decides the results. Two sweeps of one question share a folder; seeds may be added."""
        return {
            "kind": self.kind,
            "heads": self.heads,
            "shortlist": self.shortlist,
            **({"lr_sweep": True} if self.lr_sweep else {}),
            "training": self.training.model_dump(mode="json", exclude={"spec", "seed", *HOW}),
            "points": {
                point.name: {
                    str(candidate.rank): candidate.spec.model_dump(mode="json", exclude_unset=True, exclude=NAMES)
                    for candidate in point.candidates
                }
                for point in self.points
            },
        }

    def arms(
        self, chosen: Mapping[str, Candidate] | None = None, rates: Mapping[str, float] | None = None
    ) -> Iterator[Arm]:
        """Every (point, seed) as an arm, the seeds of a point one after the other.

        ``chosen`` and ``rates`` have the match and the learning rate of a point by its name; without them, the first
        match and the shared rate stand.
        """
        for point in self.points:
            candidate = (chosen or {}).get(point.name, point.best)
            rate = (rates or {}).get(point.name, self.training.learning_rate)
            training = self.training.model_copy(update={"learning_rate": rate})
            for seed in range(self.seeds):
                yield arm_of(point, candidate, seed, training, f"{point.name}-seed{seed}")

    def file(self) -> SweepFile:
        """What the sweep's folder says of it."""
        return SweepFile(question=self.question, seeds=self.seeds, arms=tuple(arm.name for arm in self.arms()))


def arm_of(point: Point, candidate: Candidate, seed: int, training: TrainConfig, name: str) -> Arm:
    """An arm that trains a match of a point. A model that states no vocabulary gets the corpus's."""
    spec = candidate.spec.changed(name=point.name[:100], vocab_size=training.spec.vocab_size)
    return Arm(name, point, training.model_copy(update={"spec": spec, "seed": seed}))
