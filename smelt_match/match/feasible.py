"""The certified feasible set as a search space: every model that is matched on all budgets, and nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt_match.match.answer import PolicyAnswer
from smelt_match.match.problem import POINT_AXES, Policy, Problem
from smelt_match.match.solver import Search, kv_levels, nearest_level
from smelt_match.match.study import asked
from smelt_match.spec.model import ModelSpec

if TYPE_CHECKING:
    import optuna

# Head geometry first: a suggestion is followed as far as the models that are left allow, in this order.
ORDER = ("head_dim", "num_attention_heads", "num_key_value_heads", "hidden_size", "num_experts",
         "expert_intermediate_size")  # fmt: skip


class Feasible:
    """Every model that is matched on all budgets, of all policies: a row of integers each.

    Args:
        solved: Policies that have a match.
    """

    def __init__(self, solved: Sequence[PolicyAnswer]) -> None:
        self.problems = {policy.policy: policy.problem for policy in solved if policy.problem is not None}
        self.policies = tuple(self.problems)
        self.rungs: dict[Policy, Fraction | None] = {}
        parts = []
        for index, (policy, problem) in enumerate(self.problems.items()):
            rows = self._matched(policy, problem)
            parts.append(np.concatenate([np.full((len(rows), 1), index), rows], axis=1))
        self.rows = np.concatenate(parts)
        self.certified: dict[Policy, int] = {}
        for one in solved:
            row = self.find(one.policy, one.solution.ranked[0]) if one.solution else None
            assert row is not None, "a certified optimum is matched"
            self.certified[one.policy] = row

    def _matched(self, policy: Policy, problem: Problem) -> Any:
        """The points within the tolerance; without one, within the certificate's rung with KV at its level."""
        tolerance = problem.question.tolerance
        if tolerance is None:
            found = nearest_level(problem)
            assert found is not None, "a solved problem has a first rung"
            self.rungs[policy], points = found[1:]
        else:
            self.rungs[policy] = None
            search = Search(problem, set().union(*kv_levels(problem)))
            points = search.points(max(tolerance.flops, tolerance.params))
        return np.stack([np.asarray(column, dtype=np.int64) for column in vars(points).values()], axis=1)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, policy: object, point: object) -> int | None:
        """The row of a point, or None."""
        if policy not in self.policies or not isinstance(point, (list, tuple)) or len(point) != len(POINT_AXES):
            return None
        wanted = (self.policies.index(policy), *point)
        if not all(type(value) is int and 0 <= value < 2**62 for value in wanted):
            return None
        rows = np.flatnonzero((self.rows == np.array(wanted)).all(axis=1))
        return int(rows[0]) if len(rows) else None

    def policy(self, row: int) -> Policy:
        """The head policy of a row."""
        return self.policies[int(self.rows[row, 0])]

    def point(self, row: int) -> tuple[int, ...]:
        """The point of a row."""
        return tuple(map(int, self.rows[row, 1:]))

    def spec(self, row: int) -> ModelSpec:
        """The model of a row."""
        policy = self.policy(row)
        problem = self.problems[policy]
        return problem.spec_at(self.point(row), f"{problem.question.baseline.name}_{policy}"[:100])

    def suggest(self, trial: optuna.trial.Trial, left: Any) -> int:
        """The row nearest to what a sampler suggests, among those that are ``left``.

        Dimensions are suggested on the box around the set, so that a sampler sees their order and distance; one after
        the other, the rows nearest in it are kept.
        """
        rows = np.flatnonzero(left)
        for name, column, values in self._dimensions:
            if name == "policy":
                wanted = self.policies.index(trial.suggest_categorical(name, list(self.policies)))
            else:
                step = math.gcd(*np.diff(values).tolist())
                wanted = trial.suggest_int(name, int(values[0]), int(values[-1]), step=step)
            distance = np.abs(self.rows[rows, column] - wanted)
            rows = rows[distance == distance.min()]
        return int(rows[0])

    def suggestion(self, row: int) -> dict[str, Any]:
        """What a sampler would suggest to get a row."""
        values = {name: int(self.rows[row, column]) for name, column, _ in self._dimensions}
        return values | ({"policy": self.policy(row)} if "policy" in values else {})

    @property
    def _dimensions(self) -> list[tuple[str, int, Any]]:
        """(name, column, values) of the dimensions in which rows differ."""
        named = [("policy", 0), *((name, 1 + POINT_AXES.index(name)) for name in ORDER)]
        found = [(name, column, np.unique(self.rows[:, column])) for name, column in named]
        return [row for row in found if len(row[2]) > 1]

    def identity(self) -> dict[str, str]:
        """The search space, in words that can be compared."""
        digest = hashlib.sha256(np.ascontiguousarray(self.rows, dtype="<i8").tobytes()).hexdigest()
        return {
            **asked(next(iter(self.problems.values()))),
            "policies": ", ".join(self.policies),
            "space": f"{len(self)} matched models, sha256 {digest[:16]}",
        }
