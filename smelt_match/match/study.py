"""The Optuna study: a sampler walks the same space as the exact solver and checks its certificate.

Each trial suggests H, the expert count, the head size and, where the flags free them, the GQA ratio and the KV heads;
I is the first under the total order. A trial that beats the certificate would be a bug of the solver.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt_match.errors import BadInput, SmeltMatchError
from smelt_match.match.certificate import FORMULA_VERSION
from smelt_match.match.order import best, order_key, rung_of
from smelt_match.match.problem import POINT_AXES, Points, Problem
from smelt_match.match.solver import Solution, kv_floor, nearest_heads
from smelt_match.match.storage import LEFT, open_study, storage_errors
from smelt_match.units import fraction_text

if TYPE_CHECKING:
    import optuna

SAMPLER = "TPESampler"


@dataclass(frozen=True)
class StudyResult:
    """What a study found, against the certificate.

    Attributes:
        trials: Finished trials.
        duplicates: Trials whose parameters an earlier one had.
        infeasible: Trials that broke a constraint.
        met_at: Number of the first trial that reached the certified optimum, from 0, or None.
        best: The best feasible point, or None.
        best_worst: Its max(|flops|, |params|).
        certified_worst: The certified optimum's.
    """

    sampler: str
    seed: int
    trials: int
    duplicates: int
    infeasible: int
    met_at: int | None
    best: tuple[int, ...] | None
    best_worst: Fraction | None
    certified_worst: Fraction

    @property
    def gap(self) -> Fraction | None:
        """How much further from the target than the certified optimum the best trial is."""
        return None if self.best_worst is None else self.best_worst - self.certified_worst

    def as_json(self) -> dict[str, Any]:
        """Plain values for the `study` key of a document."""
        return {
            "sampler": self.sampler, "seed": self.seed, "trials": self.trials, "duplicates": self.duplicates,
            "infeasible": self.infeasible, "certified_optimum_met_at_trial": self.met_at,
            "best": dict(zip(POINT_AXES, self.best, strict=True)) if self.best else None,
            "best_worst_deviation": None if self.best_worst is None else float(self.best_worst),
            "gap_to_certificate": None if self.gap is None else float(self.gap),
        }  # fmt: skip


class Space:
    """The search space of one problem: what is suggested, and the point a suggestion stands for."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        axes = problem.axes
        self.choices: dict[str, tuple[int, ...]] = {
            "hidden_size": axes["hidden_size"],
            "num_experts": axes["num_experts"],
            "head_dim": axes["head_dim"],
            "num_key_value_heads": axes["num_key_value_heads"],
        }
        if problem.question.heads != "q-width" or problem.policy == "split":
            self.choices["gqa_ratio"] = tuple(sorted({q // kv for _, q, kv in problem.geometries}))
        self.floor = abs(kv_floor(problem)) if "kv" in problem.question.match else None
        self.I = np.array(axes["expert_intermediate_size"], dtype=object)

    def suggest(self, trial: optuna.trial.Trial) -> dict[str, int]:
        """One value of each free dimension; dimensions with one value are not suggested."""
        return {name: self._suggest(trial, name, values) for name, values in self.choices.items()}

    @staticmethod
    def _suggest(trial: optuna.trial.Trial, name: str, values: tuple[int, ...]) -> int:
        if len(values) == 1:
            return values[0]
        step = values[1] - values[0]
        if values == tuple(range(values[0], values[-1] + 1, step)):
            return trial.suggest_int(name, values[0], values[-1], step=step)
        return int(trial.suggest_categorical(name, list(values)))

    def point(self, params: dict[str, int]) -> tuple[tuple[int, ...], dict[str, float]]:
        """The point of a suggestion, with I solved for, and its constraints (feasible where all are at most 0)."""
        H, E, d, n_kv = (params[n] for n in ("hidden_size", "num_experts", "head_dim", "num_key_value_heads"))
        base = self.problem.question.baseline
        n_q = params["gqa_ratio"] * n_kv if "gqa_ratio" in params else int(nearest_heads(base, H, d, n_kv))
        factor = self.problem.envelope
        allowed = self.I
        if factor is not None:
            low = Fraction(H * base.expert_intermediate_size, base.hidden_size) / factor
            high = Fraction(H * base.expert_intermediate_size, base.hidden_size) * factor
            allowed = self.I[(low <= self.I) & (high >= self.I)]
        width = Fraction(n_q * d * base.hidden_size, H * base.num_attention_heads * base.head_dim)
        constraints = {
            "query_width_in_envelope": float(max(width, 1 / width) - factor) if factor is not None else 0.0,
            "expert_width_in_envelope": 0.0 if len(allowed) else 1.0,
            "query_heads_on_grid": 0.0 if n_q in self.problem.axes["num_attention_heads"] else 1.0,
        }
        choices = allowed if len(allowed) else self.I
        columns = (np.full(len(choices), value, dtype=object) for value in (d, n_q, n_kv))
        points = Points(
            np.full(len(choices), H, dtype=object), np.full(len(choices), E, dtype=object), choices, *columns
        )
        chosen = self._first(points)
        if self.floor is not None:
            kv = int(self.problem.values(Points.of(chosen))["kv"][0])
            constraints["kv_at_floor"] = float(abs(self.problem.relative("kv", kv)) - self.floor)
        constraints |= self._limits(chosen)
        return chosen, constraints

    def _first(self, points: Points) -> tuple[int, ...]:
        """The first point of the total order among points that differ in I alone."""
        values = self.problem.values(points)
        targets, match = self.problem.targets, self.problem.question.match
        worst = np.max(
            [np.abs(values[n] - targets[n]).astype(float) / targets[n] for n in ("flops", "params") if n in match],
            axis=0,
        )
        rung = float(rung_of(Fraction(float(worst.min()))))
        return best(self.problem, points.take(np.flatnonzero(worst <= rung * (1 + 1e-12))), 1)[0]

    def _limits(self, point: tuple[int, ...]) -> dict[str, float]:
        """Constraints of a tolerance and of one-sidedness."""
        question, values = self.problem.question, self.problem.values(Points.of(point))
        limits = {}
        for name in question.match:
            value = self.problem.relative(name, int(values[name][0]))
            if question.tolerance is not None:
                limits[f"{name}_within_tolerance"] = float(abs(value) - getattr(question.tolerance, name))
            if question.one_sided:
                limits[f"{name}_at_most_zero"] = float(value)
        return limits

    def loss(self, point: tuple[int, ...]) -> float:
        """The total order pressed into one number, for the sampler's eyes; the exact order decides in the end."""
        _, rung, attention, shape, alignment, leximax, _ = order_key(self.problem, point)
        attention_share = attention / max(1, self.problem.targets["attention"])
        value = float(rung) * 1e4 + attention_share + shape * 1e-4 + alignment * 1e-6 + float(leximax[0]) * 1e-6
        return float(value)

    def anchors(self) -> Iterator[dict[str, int]]:
        """The closed-form guess and its neighbours on the grid, as suggestions.

        The guess keeps I/H and takes the geometry nearest to the KV floor; then FLOPs are a quadratic in H, and
        parameters give E.
        """
        problem, question = self.problem, self.problem.question
        base, target = question.baseline, problem.targets
        near = sorted(problem.geometries, key=lambda g: (self._kv_distance(g), abs(g[1] * g[0] - self._width0)))
        d, n_q, n_kv = near[0]
        shape = Fraction(base.expert_intermediate_size, base.hidden_size)

        def cost(H: int, E: int) -> dict[str, int]:
            point = (H, E, max(1, round(H * shape)), d, n_q, n_kv)
            return {name: int(column[0]) for name, column in problem.values(Points.of(point)).items()}

        Hs, Es = self.choices["hidden_size"], self.choices["num_experts"]
        h = min(range(len(Hs)), key=lambda i: abs(cost(Hs[i], base.num_experts)["flops"] - target["flops"]))
        e = min(range(len(Es)), key=lambda i: abs(cost(Hs[h], Es[i])["params"] - target["params"]))
        fixed = {"head_dim": d, "num_key_value_heads": n_kv, "gqa_ratio": n_q // n_kv}
        for dh, de in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, 1), (1, -1), (-1, -1), (1, 1)):
            if 0 <= h + dh < len(Hs) and 0 <= e + de < len(Es):
                values = {"hidden_size": Hs[h + dh], "num_experts": Es[e + de], **fixed}
                yield {name: values[name] for name, allowed in self.choices.items() if len(allowed) > 1}

    @property
    def _width0(self) -> int:
        return self.problem.question.baseline.num_attention_heads * self.problem.question.baseline.head_dim

    def _kv_distance(self, geometry: tuple[int, int, int]) -> int:
        return abs(self.problem.kv_slots * geometry[0] * geometry[2] - self.problem.targets["kv"])

    def identity(self, seed: int) -> dict[str, str]:
        """What must be the same for a stored study to be continued."""
        return {
            **asked(self.problem),
            "policy": self.problem.policy,
            "space": json.dumps({name: _short(values) for name, values in self.choices.items()}),
            "expert_widths": _short(self.problem.axes["expert_intermediate_size"]),
            "envelope": str(self.problem.envelope),
            "sampler": f"{SAMPLER} seed {seed}",
        }


def asked(problem: Problem) -> dict[str, str]:
    """What a search was asked, in words that can be compared."""
    question = problem.question
    tolerance = question.tolerance
    return {
        "baseline": json.dumps(question.baseline.config(), sort_keys=True),
        "layout": question.layout.canonical,
        "convention": question.convention.name,
        "attended_tokens": fraction_text(problem.attended),
        "match": ",".join(question.match) + (" one-sided" if question.one_sided else ""),
        "tolerance": "none" if tolerance is None else f"{tolerance.flops},{tolerance.params},{tolerance.kv}",
        "formula_version": str(FORMULA_VERSION),
    }


def _short(values: tuple[int, ...]) -> str:
    step = values[1] - values[0] if len(values) > 1 else 1
    if values == tuple(range(values[0], values[-1] + 1, step)):
        return f"{values[0]}..{values[-1]} by {step}"
    return ",".join(str(value) for value in values)


def run_study(
    problem: Problem,
    solution: Solution,
    trials: int,
    seed: int,
    storage: str | None,
    progress: Callable[[int], None] | None = None,
) -> StudyResult:
    """Run (or continue) a study of ``trials`` trials in all and compare it with the exact solution.

    Args:
        problem: The problem that ``solution`` solves.
        trials: Finished trials to have in the end; trials of a stored study count.
        seed: Seed of the sampler.
        storage: A journal file, a database URL, or None to keep the study in memory.
        progress: Called with the number of finished trials.

    Raises:
        BadInput: The storage is not a study, or one of another space.
        SmeltMatchError: A trial beats the certificate.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = Space(problem)
    # A solution of a relaxed tolerance is compared under the same problem, so its key is computed here.
    goal = order_key(problem, solution.ranked[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

        def objective(trial: optuna.trial.Trial) -> float:
            point, constraints = space.point(space.suggest(trial))
            for name, value in constraints.items():
                trial.set_constraint(name, value)
            trial.set_user_attr("point", list(point))
            if progress is not None:
                progress(trial.number + 1)
            return space.loss(point)

        with storage_errors(storage):
            study = open_study(space.identity(seed), storage, space.anchors(), lambda found: _check(found, storage))
            done = len(_finished(study))
            study.sampler = optuna.samplers.TPESampler(seed=seed + done)
            study.optimize(objective, n_trials=max(0, trials - done))
            return _result(space, study, goal, seed, storage)


def _finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    import optuna

    return study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))


def _check(study: optuna.Study, storage: str | None) -> None:
    """Refuse a stored study whose trials hold no points."""
    for trial in _finished(study):
        point = trial.user_attrs.get("point")
        if not isinstance(point, list) or len(point) != len(POINT_AXES) or not all(map(_is_size, point)):
            raise BadInput(f"{storage}: trial {trial.number} holds no point of this search", LEFT)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _recomputed(space: Space, trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial's parameters give the feasible point that is stored with it."""
    chosen = {name: values[0] for name, values in space.choices.items()} | trial.params
    point, constraints = space.point(chosen)
    return list(point) == trial.user_attrs["point"] and all(value <= 0 for value in constraints.values())


def _result(
    space: Space, study: optuna.Study, goal: tuple[Any, ...], seed: int, storage: str | None = None
) -> StudyResult:
    problem = space.problem
    finished = sorted(_finished(study), key=lambda trial: trial.number)
    seen: set[str] = set()
    duplicates = infeasible = 0
    met_at, leader = None, None
    for trial in finished:
        params = json.dumps(trial.params, sort_keys=True)
        duplicates += params in seen
        seen.add(params)
        if any(value > 0 for value in trial.constraints.values()):
            infeasible += 1
            continue
        key = order_key(problem, tuple(trial.user_attrs["point"]))
        if key < goal and storage is not None and not _recomputed(space, trial):
            raise BadInput(f"{storage}: trial {trial.number} was changed: its parameters do not give its point", LEFT)
        if key < goal:
            raise SmeltMatchError(
                f"trial {trial.number} of the study beats the certificate: {key[-1]} before {goal[-1]}",
                "this is a bug of smelt-match; please report the command",
            )
        if key == goal and met_at is None:
            met_at = trial.number
        leader = key if leader is None else min(leader, key)
    return StudyResult(
        SAMPLER, seed, len(finished), duplicates, infeasible, met_at,
        leader[-1] if leader else None, _worst(problem, leader[-1]) if leader else None, _worst(problem, goal[-1]),
    )  # fmt: skip


def _worst(problem: Problem, point: tuple[int, ...]) -> Fraction:
    values = problem.values(Points.of(point))
    names = [name for name in ("flops", "params") if name in problem.question.match]
    return max(abs(problem.relative(name, int(values[name][0]))) for name in names)
