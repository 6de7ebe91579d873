"""Both head policies of a question, answered, with the reason where one gives nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from smelt_match.errors import BadInput
from smelt_match.match.problem import HEADS_IN_WORDS, Policy, Problem, Question, split_ways
from smelt_match.match.solver import Solution, kv_floor, solve
from smelt_match.units import percent

POLICIES: tuple[Policy, ...] = ("uniform", "split")
KEPT_LIMIT = Fraction(2, 100)


@dataclass(frozen=True)
class PolicyAnswer:
    """One policy's answer.

    Attributes:
        policy: ``uniform`` or ``split``.
        problem: What was solved, or None where the policy does not exist for this layout.
        solution: The answer, or None.
        reason: Why there is no solution, or what was relaxed to find it; empty otherwise.
        floor: The signed KV floor under the flags in force; None when the policy does not exist or KV is not matched.
    """

    policy: Policy
    problem: Problem | None
    solution: Solution | None
    reason: str = ""
    floor: Fraction | None = None


@dataclass(frozen=True)
class Answer:
    """The answers of both policies to one question."""

    question: Question
    policies: tuple[PolicyAnswer, ...]

    @property
    def solved(self) -> list[PolicyAnswer]:
        """Policies that have a match."""
        return [policy for policy in self.policies if policy.solution is not None]


def answer(question: Question, top: int = 1) -> Answer:
    """Solve a question under both policies; at least the runner-up is always ranked too."""
    return Answer(question, tuple(_policy(question, policy, max(2, top)) for policy in POLICIES))


def _policy(question: Question, policy: Policy, top: int) -> PolicyAnswer:
    if policy == "split":
        reason = split_ways(question)[1]
        if reason:
            return PolicyAnswer(policy, None, None, f"split heads are unavailable: {reason}")
    problem = Problem(question, policy)
    try:
        solution = solve(problem, top)
    except BadInput as error:
        if policy == "split":
            return PolicyAnswer(policy, problem, None, f"split: {error.message}")
        raise
    if policy == "uniform" and question.heads == "kept" and not question.is_identity:
        freed = _freed(question, solution, top)
        if freed is not None:
            return freed
    reason = "" if solution else _nothing(problem)
    return _with_floor(policy, problem, solution, reason)


def _freed(question: Question, kept: Solution | None, top: int) -> PolicyAnswer | None:
    """Free query heads, where kept ones cannot come within 2 % and free ones come closer.

    A tolerance says what the user accepts, so that whether kept heads are close enough is asked without it.
    """
    if question.fixed.get("num_attention_heads") is not None:
        return None
    reachable = kept
    if kept is None and question.tolerance is not None:
        reachable = solve(Problem(replace(question, tolerance=None), "uniform"))
    if reachable is not None and reachable.minimax <= KEPT_LIMIT:
        return None
    problem = Problem(replace(question, heads="free"), "uniform")
    solution = solve(problem, top)
    if solution is None or (kept is not None and solution.minimax >= kept.minimax):
        return None
    how_far = f"; they reach {percent(reachable.minimax).lstrip('+')}" if reachable else ""
    reason = f"kept query heads cannot come within 2 %{how_far}: query heads were freed"
    return _with_floor("uniform", problem, solution, reason)


def _with_floor(policy: Policy, problem: Problem, solution: Solution | None, reason: str) -> PolicyAnswer:
    if "kv" not in problem.question.match:
        return PolicyAnswer(policy, problem, solution, reason)
    floor = kv_floor(problem)
    if solution is not None and solution.floor is not None and abs(solution.floor) == abs(floor):
        floor = solution.floor  # of two equally near widths, the one that was chosen
    return PolicyAnswer(policy, problem, solution, reason, floor)


def _nothing(problem: Problem) -> str:
    """Why a problem has no solution."""
    question = problem.question
    tolerance = question.tolerance
    if tolerance is not None and "kv" in question.match:
        floor = kv_floor(problem)
        if abs(floor) > tolerance.kv:
            limit = f"{float(tolerance.kv) * 100:g} %"
            return f"{problem.policy}: the KV floor is {percent(floor)}, outside the tolerance of {limit}"
    if tolerance is not None:
        closest = solve(Problem(replace(question, tolerance=None), problem.policy))
        if closest is not None:
            reached = percent(closest.minimax).lstrip("+")
            return (
                f"{problem.policy}: no point of the grid lies within the tolerance; at the KV floor, "
                f"max(|flops|, |params|) is at best {reached}"
            )
    return (
        f"{problem.policy}: no point of grid {question.grid.name!r} obeys the rules ({HEADS_IN_WORDS[question.heads]})"
    )


@dataclass(frozen=True)
class WayOut:
    """Another question that comes closer, and what it reaches."""

    change: str
    answer: Answer
    within: bool


def ways_out(question: Question, changes: list[tuple[str, Question]]) -> list[WayOut]:
    """Solve changed questions without a tolerance, and say which land within it; what changes nothing is left out."""
    present = {
        (way.policy, way.solution.ranked[0]) for way in answer(replace(question, tolerance=None)).solved if way.solution
    }
    found = []
    for change, changed in changes:
        try:
            free = answer(replace(changed, tolerance=None))
            strict = answer(replace(changed, tolerance=question.tolerance))
        except BadInput:
            continue
        reached = strict if strict.solved else free
        new = tuple(
            policy
            for policy in reached.solved
            if policy.solution
            and ((policy.policy, policy.solution.ranked[0]) not in present or changed.layout != question.layout)
        )
        if new:
            found.append(WayOut(change, Answer(changed, new), bool(strict.solved)))
    return found
