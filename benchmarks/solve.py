"""The exact search against CP-SAT and Optuna on one problem of 115 billion points, and two start-up measurements.

The problem: match 200m_s95 looped as mid50x2 on grid "raw" with all head counts free, and minimise
max(|flops|, |params|, |kv|). Every deviation below is recomputed from its point by the package, as a fraction.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import optuna
from ortools.sat.python import cp_model
from tabulate import tabulate

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.budget.tolerance import BUDGETS
from smelt_match.match.answer import Answer, PolicyAnswer, answer
from smelt_match.match.certificate import certificate
from smelt_match.match.grid import find_grid
from smelt_match.match.problem import POINT_AXES, Heads, Points, Problem, Question
from smelt_match.match.solver import pure_minimax, solve
from smelt_match.spec.family import Entry, countable, expand
from smelt_match.spec.grammar import parse_layout

LOOP = "mid50x2"
UNIT = 8  # the step of H, E, I and d on grid "raw"
PARTS = 10**6  # CP-SAT minimises millionths; 1/64 is a whole number of them
HEAVY = ("torch", "optuna", "scipy", "numpy")
SEED = 0

Result = TypeVar("Result")
Point = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table: what ran, for how long, the best max deviation it found, and what that is worth."""

    method: str
    seconds: float
    worst: Fraction | None = None
    proven: str = ""


@dataclass(frozen=True)
class Goal:
    """A goal, what was measured, and whether that meets it."""

    goal: str
    measured: str
    met: bool


def question(entry: Entry, grid: str, heads: Heads = "kept") -> Question:
    """A baseline looped as `LOOP` under the paper's convention."""
    spec = countable(entry)
    layout = parse_layout(LOOP, spec.num_layers)
    return Question(spec, layout, convention("paper"), context_of(spec), find_grid(grid), heads)


def best_of(repeats: int, call: Callable[[], Result]) -> tuple[float, Result]:
    """The shortest wall time of a call, and its last result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


def worst(problem: Problem, point: Point) -> Fraction:
    """max(|flops|, |params|, |kv|) at a point, exactly."""
    values = problem.values(Points(*point))
    return max(abs(problem.relative(name, int(values[name]))) for name in BUDGETS)


def certified(asked: Question) -> dict[str, Any]:
    """The certificate of the uniform policy: the optimum under the total order, and the minimax with its ties."""
    problem = Problem(asked, "uniform")
    found = Answer(asked, (PolicyAnswer("uniform", problem, solve(problem)),))
    entry: dict[str, Any] = certificate(found)["policies"]["uniform"]
    return entry


class Model(cp_model.CpModel):
    """The problem for CP-SAT, in units of 8, with one variable for each product that the budgets share."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        top = {name: axis[-1] // UNIT for name, axis in problem.axes.items()}
        heads, kv_heads = problem.axes["num_attention_heads"], problem.axes["num_key_value_heads"]
        self.h, self.e, self.i, self.d = (
            self.new_int_var(problem.axes[name][0] // UNIT, top[name], name)
            for name in ("hidden_size", "num_experts", "expert_intermediate_size", "head_dim")
        )
        self.n_q = self.new_int_var(heads[0], heads[-1], "n_q")
        self.n_kv = self.new_int_var_from_domain(cp_model.Domain.from_values(kv_heads), "n_kv")
        ratio = self.new_int_var(1, heads[-1], "n_q / n_kv")
        self.add_multiplication_equality(self.n_q, [ratio, self.n_kv])
        most_q, most_kv = heads[-1] * top["head_dim"], kv_heads[-1] * top["head_dim"]
        Q, K = self.product(self.n_q, self.d, most_q), self.product(self.n_kv, self.d, most_kv)
        width = self.new_int_var(1, most_q + most_kv, "Q + K")
        self.add(width == Q + K)
        most_h, most_e, most_i = (top[n] for n in ("hidden_size", "num_experts", "expert_intermediate_size"))
        HE, HI = self.product(self.h, self.e, most_h * most_e), self.product(self.h, self.i, most_h * most_i)
        HIE = self.product(HI, self.e, most_h * most_i * most_e)
        projections, router = 2 * UNIT**2 * self.product(self.h, width, most_h * (most_q + most_kv)), UNIT**2 * HE
        stored, executed = problem.question.layout.num_layers, len(problem.question.layout.visits)
        k, c, unscaled = problem.question.baseline.experts_per_token, *problem.attended.as_integer_ratio()
        matmul = 6 * executed * (projections + router + 3 * k * UNIT**2 * HI)
        norms = UNIT * (2 * stored + 1) * self.h
        self.budgets = {
            "flops": unscaled * matmul + 12 * executed * c * UNIT * Q,
            "params": stored * (projections + router + 3 * UNIT**3 * HIE) + norms,
            "kv": 2 * executed * UNIT * K,
        }
        self.targets = problem.targets

    def product(self, a: cp_model.IntVar, b: cp_model.IntVar, most: int) -> cp_model.IntVar:
        """A variable equal to a·b."""
        variable = self.new_int_var(1, most, f"{a.name} * {b.name}")
        self.add_multiplication_equality(variable, [a, b])
        return variable

    def minimise(self) -> None:
        """Minimise the largest deviation in millionths, at most 100 %; no term passes 2^60."""
        parts = self.new_int_var(0, PARTS, "deviation")
        for name, value in self.budgets.items():
            self.add(PARTS * (value - self.targets[name]) <= self.targets[name] * parts)
            self.add(PARTS * (self.targets[name] - value) <= self.targets[name] * parts)
        super().minimize(parts)

    def within(self, limit: Fraction) -> None:
        """Keep every deviation within a limit, exactly."""
        for name, value in self.budgets.items():
            slack = int(limit * self.targets[name])
            self.add_linear_constraint(value, self.targets[name] - slack, self.targets[name] + slack)

    def point(self, solver: cp_model.CpSolver) -> Point:
        """The point of a solution, in the order of `POINT_AXES`."""
        scaled = [UNIT * solver.value(variable) for variable in (self.h, self.e, self.i, self.d)]
        return (*scaled, solver.value(self.n_q), solver.value(self.n_kv))


class Watch(cp_model.CpSolverSolutionCallback):
    """Counts solutions, and notes when one first has an objective of at most ``goal``."""

    def __init__(self, goal: float) -> None:
        super().__init__()
        self.goal, self.start, self.count = goal, time.perf_counter(), 0
        self.reached: float | None = None

    def on_solution_callback(self) -> None:
        """Called by CP-SAT at every solution."""
        self.count += 1
        if self.reached is None and self.objective_value <= self.goal:
            self.reached = time.perf_counter() - self.start


def cp_sat(problem: Problem, goal: Fraction, limit: float, seed: int) -> tuple[Row, str]:
    """One optimum and its proof by CP-SAT on two workers; and when it first reached ``goal``, in words."""
    watch = Watch(ceil(goal * PARTS))
    model = Model(problem)
    model.minimise()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 2
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.random_seed = seed
    status = solver.solve(model, watch)
    seconds = time.perf_counter() - watch.start
    name = "CP-SAT, 2 workers: one optimum"
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Row(name, seconds, None, solver.status_name(status)), "no solution"
    point = model.point(solver)
    values = problem.values(Points(*point))
    assert all(solver.value(model.budgets[budget]) == values[budget] for budget in BUDGETS), "the model miscounts"
    proven = "to 1e-6" if status == cp_model.OPTIMAL else "no"
    first = "not reached" if watch.reached is None else f"first reached after {watch.reached:.2f} s"
    told = f"seed {seed}: {solver.status_name(status)} in {seconds:.2f} s, {goal} {first}, at {named(point)}"
    return Row(name, seconds, worst(problem, point), proven), told


def cp_sat_ties(problem: Problem, value: Fraction, limit: float) -> tuple[Row, int]:
    """Every point within ``value``, counted by CP-SAT; it enumerates on one worker only."""
    watch = Watch(0)
    model = Model(problem)
    model.within(value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.max_time_in_seconds = limit
    status = solver.solve(model, watch)
    proven = "all ties" if status == cp_model.OPTIMAL else f"no, {watch.count:,} ties so far"
    seconds = time.perf_counter() - watch.start
    return Row("CP-SAT, 1 worker: all ties, given the value", seconds, value, proven), watch.count


def sampled(problem: Problem, name: str, sampler: optuna.samplers.BaseSampler, trials: int) -> Row:
    """The best point of an Optuna study over the six dimensions; n_q is rounded up to a multiple of n_kv."""
    axes = problem.axes

    def objective(trial: optuna.trial.Trial) -> float:
        raw = [trial.suggest_int(n, axes[n][0], axes[n][-1], step=axes[n][1] - axes[n][0]) for n in POINT_AXES[:5]]
        n_kv = axes["num_key_value_heads"][trial.suggest_int("kv_index", 0, len(axes["num_key_value_heads"]) - 1)]
        point = (*raw[:4], -(-raw[4] // n_kv) * n_kv, n_kv)
        trial.set_user_attr("point", point)
        return float(worst(problem, point))

    start = time.perf_counter()
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=trials)
    seconds = time.perf_counter() - start
    return Row(f"Optuna {name}, {trials:,} trials", seconds, worst(problem, study.best_trial.user_attrs["point"]), "no")


def sixteen_cells() -> int:
    """Solve and certify every baseline of the paper under both policies; returns how many answers there are."""
    answers = [answer(question(entry, "bf16")) for entry in expand("smelt")]
    assert len(answers) == 16
    return sum(policy is not None for found in answers for policy in certificate(found)["policies"].values())


def start_up() -> list[str]:
    """The heavy libraries that ``smelt-match --help`` imports."""
    code = (
        "import sys; from smelt_match.cli import run; assert run(['--help']) == 0; "
        f"print('imported:', *[name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.rpartition("imported:")[2].split()


def show_help() -> None:
    """Run the installed program as a user does."""
    program = shutil.which("smelt-match", path=sysconfig.get_path("scripts"))
    assert program, "smelt-match is not installed beside this Python"
    subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=True)


def named(point: Point) -> str:
    """A point in words."""
    return " ".join(f"{name}={value}" for name, value in zip(("H", "E", "I", "d", "n_q", "n_kv"), point, strict=True))


def measure(trials: int, repeats: int, limit: float) -> tuple[list[Row], list[Goal], list[str]]:
    """Run everything; rows of the table (ours first), goals, and remarks."""
    asked = question(expand("200m_s95")[0], "raw", "free-kv")
    problem = Problem(asked, "uniform")
    seconds, entry = best_of(repeats, lambda: certified(asked))
    value, ties = Fraction(entry["minimax_all"]["deviation"]), entry["minimax_all"]["points"]
    ours = Row("exact search and certificate", seconds, value, f"yes, {ties:,} ties")
    seconds, found = best_of(repeats, lambda: pure_minimax(Problem(asked, "uniform")))
    assert found == (value, ties)
    first, only = best_of(repeats, lambda: pure_minimax(Problem(asked, "uniform"), count_ties=False))
    assert only == (value, None)
    ours_one = Row("exact search: one optimum", first, value, "yes")
    rows = [ours, Row("exact search: minimax and ties alone", seconds, value, f"yes, {ties:,} ties"), ours_one]

    runs = [cp_sat(problem, value, limit, seed) for seed in range(1, repeats + 1)]
    one = min((row for row, _ in runs), key=lambda row: row.seconds)
    all_ties, counted = cp_sat_ties(problem, value, limit)
    assert counted == ties or all_ties.proven != "all ties"
    tpe = sampled(problem, "TPE", optuna.samplers.TPESampler(seed=SEED), trials)
    flat = optuna.samplers.TPESampler(seed=SEED, multivariate=False)
    others = [
        one, all_ties, tpe, sampled(problem, "TPE, univariate", flat, trials),
        sampled(problem, "NSGA-II", optuna.samplers.NSGAIISampler(seed=SEED), trials),
    ]  # fmt: skip
    cells, solved = best_of(repeats, sixteen_cells)
    shown, _ = best_of(max(5, repeats), show_help)
    imported = start_up()
    small = [
        Row("sixteen cells, both policies", cells, proven=f"yes, {solved} answers"),
        Row("smelt-match --help", shown),
    ]

    to_one, to_ties, to_tpe = one.seconds / ours_one.seconds, all_ties.seconds / seconds, tpe.seconds / ours.seconds
    never_worse = all(row.worst is None or value <= row.worst for row in others)
    goals = [
        Goal("at least 3x faster than CP-SAT (one optimum, proved, each)", f"{to_one:.2f}x", to_one >= 3),
        Goal("at least 3x faster than CP-SAT (every tie counted, each)", f"{to_ties:.0f}x", to_ties >= 3),
        Goal("certificate at least 50x faster than TPE", f"{to_tpe:.0f}x", to_tpe >= 50),
        Goal("never a worse answer", "none better than ours" if never_worse else "one is better", never_worse),
        Goal("sixteen cells in less than 2 s", f"{cells:.2f} s", cells < 2),
        Goal("--help in less than 0.4 s", f"{shown:.2f} s", shown < 0.4),
        Goal(f"--help imports none of {', '.join(HEAVY)}", ", ".join(imported) or "none", not imported),
    ]
    return rows + others + small, goals, [told for _, told in runs]


def environment() -> dict[str, str]:
    """When and on what this ran."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in ("numpy", "ortools", "optuna")),
    }


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="trials of each Optuna study (2000)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each fast measurement; the best counts (3)")
    parser.add_argument("--time-limit", type=float, default=120, help="seconds that CP-SAT may take (120)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to a file")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    rows, goals, remarks = measure(options.trials, options.repeats, options.time_limit)
    ours, last = rows[0], len(rows) - 2
    table = [
        {
            "method": row.method,
            "seconds": round(row.seconds, 3),
            "ratio to ours": round(row.seconds / ours.seconds, 2) if index < last else None,
            "best max deviation": None if row.worst is None else f"{float(row.worst):.4%}",
            "proven?": row.proven,
        }
        for index, row in enumerate(rows)
    ]
    about = environment()
    print("\n".join(f"{name}: {text}" for name, text in about.items()), end="\n\n")
    print(tabulate(table, headers="keys", disable_numparse=[0, 3, 4], floatfmt=("", ".3f", ".2f")), end="\n\n")
    print("\n".join(f"CP-SAT, {remark}" for remark in remarks), end="\n\n")
    print("\n".join(f"{'met' if goal.met else 'missed':<7} {goal.goal}: {goal.measured}" for goal in goals))
    if options.json is not None:
        goal_rows = [{"goal": goal.goal, "measured": goal.measured, "met": goal.met} for goal in goals]
        document = {"environment": about, "rows": table, "cp_sat_runs": remarks, "goals": goal_rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
