"""The fastest training step among matched models, which no algebra decides: Optuna looks for it with a timer.

The space is the certified feasible set, enumerated by the exact solver: every model that Optuna can suggest is matched
on all budgets, and none is suggested twice. Times are ratios to the baseline's, taken in turn with it: a machine that
slows down slows both.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from smelt_match.errors import BadInput
from smelt_match.match.answer import PolicyAnswer
from smelt_match.match.feasible import Feasible
from smelt_match.match.problem import Policy, Problem
from smelt_match.match.storage import LEFT, open_study, storage_errors
from smelt_match.match.study import SAMPLER
from smelt_match.spec.model import ModelSpec

if TYPE_CHECKING:
    import optuna

TRIALS = 10
PAIRS = 5  # of a trial: the baseline's step and the model's, in turn
PRUNED_FROM = 2  # index of the first pair after which a trial may be pruned
UNPRUNED = 4  # whole trials before any is pruned: the certified optima, which come first, never are
ROUNDS = 9  # of the run-off


class Timer(Protocol):
    """Times training steps against the baseline's."""

    @property
    def identity(self) -> Mapping[str, str]:
        """The device and the step, in words that can be compared."""

    def rounds(self, specs: Sequence[ModelSpec]) -> Generator[tuple[float, ...], None, None]:
        """Without end: seconds of the baseline's step, then of each model's, timed in turn."""


@dataclass(frozen=True)
class Ratio:
    """A step time as a share of another's, taken in turn with it: the median of the rounds, and their middle half."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(seconds: Sequence[float], reference: Sequence[float]) -> Ratio:
        """From times of the same rounds."""
        each = [ours / theirs for ours, theirs in zip(seconds, reference, strict=True)]
        low, middle, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
        return Ratio(middle, low, high)


@dataclass(frozen=True)
class Timed:
    """A matched model with its step time.

    Attributes:
        point: (H, E, I, d, n_q, n_kv).
        to_baseline: Its step as a share of the baseline's.
        to_certified: Its step as a share of that of its own policy's certified optimum.
    """

    policy: Policy
    point: tuple[int, ...]
    to_baseline: Ratio
    to_certified: Ratio


@dataclass(frozen=True)
class Fastest:
    """What a search for the fastest step found; all of it measured.

    Attributes:
        timer: The device and the step.
        spaces: Matched models of each policy.
        rungs: The limit of max(|flops|, |params|) that they obey, by policy; None where a tolerance was given.
        trials: Models timed.
        pruned: Those of them that were given up early.
        sampler: Of the search, with its seed.
        rounds: Of the run-off.
        timed: The winner of the run-off first, then the certified optimum of each policy.
        problems: The problem of each policy.
    """

    timer: Mapping[str, str]
    spaces: Mapping[Policy, int]
    rungs: Mapping[Policy, Fraction | None]
    trials: int
    pruned: int
    sampler: str
    rounds: int
    timed: tuple[Timed, ...]
    problems: Mapping[Policy, Problem]

    @property
    def winner(self) -> Timed:
        """The fastest."""
        return self.timed[0]


def find_fastest(
    solved: Sequence[PolicyAnswer],
    timer: Timer,
    trials: int,
    seed: int,
    storage: str | None,
    progress: Callable[[str], None] = lambda _: None,
) -> Fastest:
    """Search (or continue to search) for the matched model with the fastest training step.

    The certified optima are timed first, and never pruned. In the end a run-off times the best trial and the certified
    optima in turn, so that the winner does not owe its place to the luckiest of many trials.

    Args:
        solved: Policies that have a match, at least one.
        timer: Times steps on a device.
        trials: Models to have timed in the end, those of a stored study among them; never more than there are.
        seed: Seed of the sampler.
        storage: A journal file, a database URL, or None to keep the study in memory.
        progress: Told a line for each trial.

    Raises:
        BadInput: The storage is not a study, or one of another space, device or step.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = Feasible(solved)
    search = _Search(space, timer, min(trials, len(space)), storage, progress)
    sampler = f"{SAMPLER} seed {seed}"
    identity = {
        "objective": "step-time", **space.identity(), **timer.identity, "pairs": str(PAIRS), "sampler": sampler,
    }  # fmt: skip
    with warnings.catch_warnings(), storage_errors(storage):
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = open_study(identity, storage, (), search.check)
        search.run(study, seed)
        timed = search.run_off(study)
        finished = search.finished(study)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in finished)
    spaces = {policy: int((space.rows[:, 0] == index).sum()) for index, policy in enumerate(space.policies)}
    return Fastest(
        timer.identity, spaces, space.rungs, len(finished), pruned, sampler, ROUNDS, tuple(timed), space.problems,
    )  # fmt: skip


class _Search:
    """The trials of one study, and the run-off."""

    def __init__(
        self, space: Feasible, timer: Timer, trials: int, storage: str | None, progress: Callable[[str], None]
    ) -> None:
        self.space, self.timer, self.trials, self.storage, self.progress = space, timer, trials, storage, progress
        self.seeds = list(space.certified.values())
        assert len(self.seeds) <= UNPRUNED

    @staticmethod
    def finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
        """Trials that timed a model, to the end or not."""
        from optuna.trial import TrialState

        return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    def row(self, trial: optuna.trial.FrozenTrial) -> int | None:
        """The row that a trial timed."""
        return self.space.find(trial.user_attrs.get("policy"), trial.user_attrs.get("point"))

    def check(self, study: optuna.Study) -> None:
        """Refuse a stored study with a trial that is not of this space, or that holds no time."""
        for trial in self.finished(study):
            if self.row(trial) is None or not (trial.value is not None and 0 < trial.value < math.inf):
                raise BadInput(f"{self.storage}: trial {trial.number} holds no step time of this search", LEFT)

    def run(self, study: optuna.Study, seed: int) -> None:
        """Time models until enough were."""
        import optuna

        done = [self.row(trial) for trial in self.finished(study)]
        if len(done) >= self.trials:
            return
        left = np.ones(len(self.space), dtype=bool)
        left[[row for row in done if row is not None]] = False
        waiting = [
            trial.system_attrs.get("fixed_params")
            for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))
        ]
        for row in self.seeds:
            if left[row] and self.space.suggestion(row) not in waiting:
                study.enqueue_trial(self.space.suggestion(row))
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(done), n_startup_trials=UNPRUNED)
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED, n_warmup_steps=PRUNED_FROM)
        study.optimize(lambda trial: self._time(trial, left), n_trials=self.trials - len(done))

    def _time(self, trial: optuna.trial.Trial, left: Any) -> float:
        """The objective: one model's step against the baseline's, given up when it is slower than most were."""
        import optuna

        row = self.space.suggest(trial, left)
        trial.set_user_attr("policy", self.space.policy(row))
        trial.set_user_attr("point", list(self.space.point(row)))
        pairs: list[tuple[float, ...]] = []
        pruned = False
        with closing(self.timer.rounds([self.space.spec(row)])) as rounds:
            for step, pair in zip(range(PAIRS), rounds, strict=False):
                pairs.append(pair)
                ratio = Ratio.of([ours for _, ours in pairs], [theirs for theirs, _ in pairs])
                trial.report(ratio.value, step)
                pruned = step < PAIRS - 1 and trial.should_prune()
                if pruned:
                    break
        left[row] = False
        number = len(left) - int(left.sum())
        self.progress(
            f"{number} of {self.trials}: {words(self.space.policy(row), self.space.point(row))}: "
            f"{ratio.value:.3f} of the baseline's step" + (f", pruned after {len(pairs)} pairs" if pruned else "")
        )
        if pruned:
            raise optuna.TrialPruned
        return ratio.value

    def run_off(self, study: optuna.Study) -> list[Timed]:
        """The best trial and the certified optima, timed in turn once more; the fastest first, then the certified."""
        import optuna

        whole = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        best = self.row(min(whole, key=lambda trial: (trial.value, trial.number)))
        assert best is not None, "checked when the study was opened"
        rows = list(dict.fromkeys([best, *self.seeds]))
        stored = study.user_attrs.get("run_off")
        if isinstance(stored, dict) and stored.get("rows") == rows and _sound(stored.get("rounds"), 1 + len(rows)):
            rounds = stored["rounds"]
        else:
            self.progress(f"run-off: {len(rows)} models and the baseline in turn, {ROUNDS} rounds")
            with closing(self.timer.rounds([self.space.spec(row) for row in rows])) as found:
                rounds = [list(seconds) for _, seconds in zip(range(ROUNDS), found, strict=False)]
            study.set_user_attr("run_off", {"rows": rows, "rounds": rounds})
        baseline, *columns = (list(column) for column in zip(*rounds, strict=True))
        by_row = dict(zip(rows, columns, strict=True))

        def timed(row: int) -> Timed:
            policy = self.space.policy(row)
            to_certified = Ratio.of(by_row[row], by_row[self.space.certified[policy]])
            return Timed(policy, self.space.point(row), Ratio.of(by_row[row], baseline), to_certified)

        fastest = min(rows, key=lambda row: Ratio.of(by_row[row], baseline).value)
        return [timed(fastest), *map(timed, self.seeds)]


def _sound(rounds: object, width: int) -> bool:
    """Whether a stored run-off holds times."""
    return (
        isinstance(rounds, list)
        and len(rounds) == ROUNDS
        and all(isinstance(row, list) and len(row) == width for row in rounds)
        and all(type(value) is float and 0 < value < math.inf for row in rounds for value in row)
    )


def words(policy: str, point: tuple[int, ...]) -> str:
    """A model in a few words."""
    H, E, I, d, n_q, n_kv = point
    return f"{policy}, H {H}, E {E}, I {I}, d {d}, n_q {n_q}, n_kv {n_kv}"
