"""Running a sweep: what is missing in its folder is trained, and what is there is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smelt_match.ablate.folder import (
    ARMS,
    RATES,
    SHORTLIST,
    STOPPED,
    arm_folder,
    failure,
    held,
    open_folder,
    read_sweep,
    short_folders,
    state,
    write_run,
)
from smelt_match.ablate.launch import Launcher, Told
from smelt_match.ablate.points import Point
from smelt_match.ablate.rates import Rate, rates
from smelt_match.ablate.result import ArmResult, read_result
from smelt_match.ablate.reuse import take_over, trained_elsewhere
from smelt_match.ablate.shortlist import Choice, choose
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import BadInput
from smelt_match.train.config import RUN_FILE, read_config


@dataclass(frozen=True)
class Finished:
    """What a run of a sweep left.

    Attributes:
        points: The points of the sweep, each with the match that was trained first.
        results: By point name and seed; arms that failed are not in it.
        failures: Why an arm has no result, by its name.
        choices: What short runs chose, by point name; empty without a shortlist.
        learning_rate: What all arms share, or what the sweep of learning rates lies around.
        rates: What short runs say of the learning rate, by point name; empty where all share one.
    """

    points: tuple[Point, ...]
    results: Mapping[tuple[str, int], ArmResult]
    failures: Mapping[str, str]
    choices: Mapping[str, Choice]
    learning_rate: float
    rates: Mapping[str, Rate]

    def rate(self, point: str) -> float:
        """The learning rate of a point's arms."""
        return self.rates[point].value if point in self.rates else self.learning_rate


def run(sweep: Sweep, folder: Path, launcher: Launcher, told: Told, reuse: Sequence[Path] = ()) -> Finished:
    """Train every arm of a sweep that has no result yet. An arm that fails takes no other along.

    Args:
        sweep: What is asked.
        folder: Where it lies.
        launcher: Runs the workers.
        told: Hears of each start and end.
        reuse: Folders of other sweeps, whose arms are taken over where they are the very same runs.

    Raises:
        BadInput: The folder holds another sweep, or another process runs this one; or one to reuse holds none.
    """
    open_folder(folder, sweep.file())
    with held(folder, "sweep"):
        try:
            choices = choose(sweep, folder, launcher, told)
            chosen = {name: choice.candidate for name, choice in choices.items()}
            found = rates(sweep, chosen, folder, launcher, told)
            arms = list(sweep.arms(chosen, {name: rate.value for name, rate in found.items()}))
            places = {arm.name: arm_folder(folder, arm.name) for arm in arms}
            damaged = {}
            for arm in list(arms):
                try:
                    write_run(places[arm.name], arm.config)
                except BadInput as error:
                    damaged[arm.name] = error.message
            # Of each seed the longest first: several side by side then end at about the same time.
            arms.sort(key=lambda arm: (arm.config.seed, -len(arm.config.spec.visits.visits)))
            waiting = [arm for arm in arms if arm.name not in damaged and state(places[arm.name]) != "done"]
            for name, origin in trained_elsewhere(waiting, reuse).items():
                take_over(places[name], origin)
                told(f"{name}: taken over from {origin}")
            missing = [places[arm.name] for arm in waiting if state(places[arm.name]) != "done"]
            if len(missing) + len(damaged) < len(arms):
                told(f"{len(arms) - len(missing) - len(damaged)} of {len(arms)} arms are done already")
            if missing:
                launcher.run(missing, told)
        finally:
            launcher.close()
        results, failures = {}, damaged
        for arm in arms:
            if arm.name in damaged:
                continue
            try:
                result = read_result(places[arm.name])
            except BadInput as error:
                failures[arm.name] = f"{error.message}; {error.hint}"
                continue
            if result is not None:
                results[arm.point.name, arm.config.seed] = result
            else:
                place = places[arm.name]
                failures[arm.name] = STOPPED if state(place) == "stopped" else failure(place)
    points = tuple(
        replace(point, candidates=(choices[point.name].candidate,)) if point.name in choices else point
        for point in sweep.points
    )
    return Finished(points, results, failures, choices, sweep.training.learning_rate, found)


@dataclass(frozen=True)
class RunState:
    """How far one run of a sweep's folder is.

    Attributes:
        name: Of its folder.
        part: What it is for, by the folder it lies in: ``arms``, or ``shortlist`` and ``rates`` of short runs.
        state: As `smelt_match.ablate.folder.state` has it, or ``damaged`` where a file of it cannot be read.
        reason: Why it failed, or what cannot be read.
    """

    name: str
    part: str
    state: str
    reason: str = ""


def status(folder: Path) -> list[RunState]:
    """The state of every arm of a sweep's folder and, after them, of its short runs; it reads, and changes nothing.

    Which short runs follow from the results of others, so that only those are here that were begun.
    """
    places = [(ARMS, arm_folder(folder, name)) for name in read_sweep(folder).arms]
    places += [(part, place) for part in (SHORTLIST, RATES) for place in short_folders(folder, part)]
    found = []
    for part, place in places:
        reached = state(place)
        damage = _damage(place)
        if damage:
            found.append(RunState(place.name, part, "damaged", damage))
        else:
            found.append(RunState(place.name, part, reached, failure(place) if reached == "failed" else ""))
    return found


def _damage(place: Path) -> str:
    """Which file of a run's folder cannot be read, and why; empty where all that are there can."""
    try:
        if (place / RUN_FILE).exists():
            read_config(place)
        read_result(place)
    except BadInput as error:
        return error.message
    return ""
