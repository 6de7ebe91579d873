"""The points of a sweep: every variant solved anew against its baseline, so that all of them cost the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from smelt_match.ablate.variants import Kind, Variant, variants
from smelt_match.budget.conventions import Convention
from smelt_match.budget.count import Counted, context_of, control_of, count
from smelt_match.budget.deviation import Deviation, deviation
from smelt_match.budget.tolerance import BUDGETS, PAPERS, Tolerance
from smelt_match.errors import BadInput
from smelt_match.match.answer import PolicyAnswer, answer, ways_out
from smelt_match.match.grid import Grid, shipped_grids
from smelt_match.match.problem import Policy, Question
from smelt_match.spec.model import ModelSpec

FINER_GRIDS = ("head4", "head2")


@dataclass(frozen=True)
class Candidate:
    """A matched model: its rank in the solver's order, its counts, and how far it is from the baseline."""

    rank: int
    counted: Counted
    off: Deviation

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return self.counted.spec


@dataclass(frozen=True)
class Point:
    """One variant of one baseline with its matched models, best first.

    Attributes:
        baseline: The reference model, counted.
        variant: Where it lies on the axis.
        heads: The head policy; the reference itself has the baseline's heads under either.
        candidates: The first matches; the reference has itself alone.
        note: What was relaxed to find them; empty otherwise.
        mend: Where the first match is beyond the paper's own tolerances, the grid that would bring it
            within them, or the words that none does; empty where none is needed.
    """

    baseline: Counted
    variant: Variant
    heads: Policy
    candidates: tuple[Candidate, ...]
    note: str = ""
    mend: str = ""

    @property
    def name(self) -> str:
        """A name that is unique in a sweep and fit for a folder."""
        return f"{self.baseline.spec.name}-{self.variant.name}"

    @property
    def is_reference(self) -> bool:
        """Whether this is the baseline itself."""
        return self.variant.layout == self.baseline.spec.visits

    @property
    def best(self) -> Candidate:
        """The first match."""
        return self.candidates[0]

    @property
    def beyond(self) -> tuple[str, ...]:
        """Budgets in which the first match is beyond the paper's own tolerances (Sec. 3.2)."""
        return outside(self.best.off, PAPERS)


def points(
    kind: Kind,
    baseline: ModelSpec,
    convention: Convention,
    grid: Grid,
    heads: Policy = "uniform",
    text: str | None = None,
    top: int = 1,
) -> list[Point]:
    """The points of a sweep around one baseline, which is one of them.

    Args:
        kind: ``span``, ``depth`` or ``count``.
        baseline: An unlooped mixture of experts.
        convention: How FLOPs are counted.
        grid: Where matches are searched.
        heads: One policy for all points.
        text: Other points than the paper's; see `variants`.
        top: Matches to keep for each point.

    Raises:
        BadInput: The head policy does not exist at a point, or the grid holds no match; every such point is named.
    """
    if not baseline.visits.is_unlooped:
        raise BadInput(f"{baseline.name}: is itself looped ({baseline.layout}); a sweep starts from an unlooped model")
    context = context_of(baseline)
    control = control_of(baseline)
    counted = count(baseline, convention, context, control)
    found, faults = [], []
    for variant in variants(kind, baseline.num_layers, text):
        question = Question(baseline, variant.layout, convention, context, grid)
        if question.is_identity:
            itself = Candidate(1, counted, deviation(counted.budget, counted.budget))
            found.append(Point(counted, variant, heads, (itself,)))
            continue
        solved = next(policy for policy in answer(question, top).policies if policy.policy == heads)
        if solved.solution is None:
            faults.append(f"{baseline.name}, {variant.name}: {solved.reason}")
            continue
        found.append(_point(counted, control, variant, question, solved, top))
    if faults:
        other = "leave these points out with --points" + (
            ", or take --heads uniform, which exists at every point" if heads == "split" else ""
        )
        raise BadInput("\n".join(faults), other)
    return found


def _point(
    baseline: Counted, control: ModelSpec, variant: Variant, question: Question, solved: PolicyAnswer, top: int
) -> Point:
    assert solved.solution is not None
    problem = solved.solution.problem
    candidates = []
    for rank, place in enumerate(solved.solution.ranked[:top], start=1):
        spec = problem.spec_at(place, f"{question.baseline.name}-{variant.name}"[:100])
        counted = count(spec, question.convention, question.context, control)
        candidates.append(Candidate(rank, counted, deviation(counted.budget, baseline.budget)))
    point = Point(baseline, variant, solved.policy, tuple(candidates), solved.reason)
    return replace(point, mend=_mend(question, solved.policy)) if point.beyond else point


def outside(off: Deviation, tolerance: Tolerance) -> tuple[str, ...]:
    """The budgets in which a deviation is beyond a tolerance."""
    return tuple(name for name in BUDGETS if abs(getattr(off, name)) > getattr(tolerance, name))


def _mend(question: Question, heads: Policy) -> str:
    """The first finer grid with a match within the paper's tolerances."""
    grids = shipped_grids()
    finer = [name for name in FINER_GRIDS if _finer(grids[name], question.grid)]
    changes = [(name, replace(question, grid=grids[name])) for name in finer]
    asked = replace(question, tolerance=PAPERS)
    for way in ways_out(asked, changes):
        if way.within and any(policy.policy == heads for policy in way.answer.solved):
            return f"--grid {way.change} mends it"
    tried = f" ({', '.join(finer)} tried)" if finer else f"; {question.grid.name!r} has the finest head sizes already"
    return f"no shipped grid mends it{tried}"


def _finer(other: Grid, grid: Grid) -> bool:
    """Whether a grid has finer head sizes than another."""
    return other.head_dim.step is not None and (grid.head_dim.step or 0) > other.head_dim.step
