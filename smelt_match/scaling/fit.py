"""A fit and its certificate: many starts, one optimum, and the evidence that it is one.

The objective is Huber (δ = 10⁻³) on log-loss. Sources: arXiv 2609.01343v3, Sec. 4.3; arXiv 2203.15556, Approach 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from smelt_match.budget.surface import Surface
from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.design import EXPONENTS, NAMES, Array, Design, Mask, Points, surface_design
from smelt_match.scaling.frontier import Coefficients
from smelt_match.scaling.solver import DELTA, Batch, Solved, solve

Optimizer = Literal["newton", "lbfgsb"]

EXPONENT_STARTS = {"a": np.linspace(0.15, 0.9, 6), "b": np.array([0.0, 0.15, 0.4]), "c": np.linspace(0.2, 1.2, 6)}
FLOOR_STARTS = (0.3, 0.6, 0.9)  # of the least loss: 6·3·6·3 = 324 starts
MANY_FLOOR_STARTS = tuple(np.linspace(0.05, 0.95, 10))

MAX_GRADIENT = 1e-6
MIN_AGREE = 0.1
MAX_CONDITION = 1e5
SAME_OBJECTIVE = 1e-8
SAME_PARAMETERS = 1e-4
ZERO = 1e-18  # of n·δ²: objectives below are rounding


@dataclass(frozen=True)
class Certificate:
    """Why a fit may be believed.

    Attributes:
        gradient: The largest entry of the gradient over what it could be at most; at an optimum, rounding.
        starts: Starts that were tried.
        agree: Share of them that ended with the best objective (to 1e-8) and its parameters (to 1e-4).
        condition: Condition number of the Jacobian of log-loss with columns of unit length.
        active: Parameters that ended at a bound.
        objective: Σ w·Huber(ln L − ln L_observed).
    """

    gradient: float
    starts: int
    agree: float
    condition: float
    active: tuple[str, ...]
    objective: float

    @property
    def faults(self) -> list[str]:
        """What is wrong with the fit; empty where it passes. A floor E of 0 is an answer, other bounds are not."""
        found = []
        if not self.gradient <= MAX_GRADIENT:
            found.append(f"not at an optimum: scaled gradient {self.gradient:.1e}, at most {MAX_GRADIENT:.0e} passes")
        if not (self.agree >= MIN_AGREE and round(self.agree * self.starts) >= 2):  # one agrees with itself
            found.append(
                f"starts disagree: {self.agree:.1%} of {self.starts} ended at the best objective, {MIN_AGREE:.0%} must"
            )
        if not self.condition <= MAX_CONDITION:
            found.append(
                f"not identified: the condition number is {self.condition:.1e}, at most {MAX_CONDITION:.0e} passes"
            )
        bounds = [name for name in self.active if name[0] != "E"]
        if bounds:
            found.append(f"at a bound: {', '.join(bounds)}")
        return found

    def as_json(self) -> dict[str, Any]:
        """The certificate as data."""
        return {
            "scaled_gradient": self.gradient, "starts": self.starts, "starts_agree": self.agree,
            "condition_number": self.condition, "bounds_active": list(self.active), "objective": self.objective,
            "passes": not self.faults,
        }  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """Eq. 2 fitted to one group of points, or to several that share parameters."""

    design: Design
    parts: Mapping[str, Points]
    frozen: Mask
    theta: Array
    certificate: Certificate

    def coefficients(self, group: str) -> Coefficients:
        """The coefficients of a group."""
        return self.design.coefficients(self.theta, group)

    def residuals(self, group: str) -> Array:
        """L − L_observed of a group's points, in nats."""
        points = self.parts[group]
        return np.asarray(self.coefficients(group).loss(points.F, points.S, points.D) - points.loss)

    def rmse(self, group: str) -> float:
        """Root of the weighted mean square residual, in nats."""
        weight = self.parts[group].weight
        return float(np.sqrt(np.sum(weight * self.residuals(group) ** 2) / np.sum(weight)))

    def surface(self, group: str, source: str = "") -> Surface:
        """A group's coefficients with the ranges they were fitted on."""
        points, k = self.parts[group], self.coefficients(group)
        ranges = {"flops_per_token": points.F, "sparsity": points.S, "tokens": points.D, "flops": points.C}
        fields: dict[str, Any] = {name: float(getattr(k, name)) for name in NAMES}
        fields |= {name: [float(values.min()), float(values.max())] for name, values in ranges.items()}
        return Surface(name=group, source=source, rmse=self.rmse(group), **fields)


def fit(
    parts: Mapping[str, Points],
    shared: Sequence[str] = (),
    fixed: Mapping[str, float] | None = None,
    optimizer: Optimizer = "newton",
    every: int = 1,
) -> Fit:
    """Fit Eq. 2 from a grid of starts, and certify the optimum.

    Args:
        parts: The points of each group.
        shared: What all groups have in common, out of E, a, b and c.
        fixed: Exponents that are given.
        optimizer: ``newton``, or the paper's ``lbfgsb``.
        every: Of the starts, take one in so many.
    """
    design = surface_design(parts, shared)
    fixed = dict(fixed or {})
    frozen = np.array([name[0] in fixed for name in design.names])
    free, used = int(np.sum(~frozen)), int(np.sum(design.weight > 0))
    if used < free:
        raise AnswerIsNo(f"{' and '.join(parts)}: {used} end points do not tell {free} coefficients",
                         "more end points, or given exponents (--fix)")  # fmt: skip
    start = starts(design, fixed)[::every]
    if optimizer == "newton":
        solved = solve(design, start, frozen=frozen)
    else:
        from smelt_match.scaling.lbfgsb import solve_lbfgsb

        solved = solve_lbfgsb(design, start, frozen)
    return judged(design, parts, frozen, solved)


def certified(found: Fit, what: str) -> Fit:
    """The fit, if its certificate passes; `AnswerIsNo` says why not otherwise."""
    if found.certificate.faults:
        raise AnswerIsNo(
            "\n".join(f"{what}: {fault}" for fault in found.certificate.faults),
            "more end points, a wider grid, or given exponents (--fix, --shared) pin a fit down",
        )
    return found


def judged(design: Design, parts: Mapping[str, Points], frozen: Mask, solved: Solved) -> Fit:
    """The best of the starts, with its certificate."""
    lowest = float(np.min(solved.objective))
    rounding = ZERO * DELTA**2 * float(np.sum(design.weight))
    close = solved.objective <= lowest * (1 + SAME_OBJECTIVE) + rounding
    ties = solved.objective <= lowest * (1 + 1e-14) + rounding  # equal but for rounding: the flattest is the optimum
    best = int(np.argmin(np.where(ties, solved.gradient, np.inf)))
    theta = solved.theta[best]
    same = np.all(np.abs(solved.theta - theta) <= SAME_PARAMETERS * np.maximum(1, np.abs(theta)), axis=1)
    held = ((theta <= design.low) | (theta >= design.high)) & ~frozen
    certificate = Certificate(
        gradient=float(solved.gradient[best]),
        starts=len(solved.theta),
        agree=float(np.mean(close & same)),
        condition=_condition(design, theta, ~frozen & ~held),
        active=tuple(name for name, at in zip(design.names, held, strict=True) if at),
        objective=float(solved.objective[best]),
    )
    return Fit(design, parts, frozen, theta, certificate)


def _condition(design: Design, theta: Array, free: Mask) -> float:
    """From the Gram matrix, whose sums no BLAS thread reorders."""
    jacobian = Batch(design).jacobian(theta)[:, free]
    gram = np.einsum("n,np,nq->pq", design.weight, jacobian, jacobian)
    lengths = np.sqrt(np.diagonal(gram))
    if not np.all(lengths > 0):
        return float("inf")
    least, *_, greatest = np.linalg.eigvalsh(gram / np.outer(lengths, lengths)) if len(gram) > 1 else (1.0, 1.0)
    return float(np.sqrt(greatest / least)) if least > 1e-14 else float("inf")


def starts(design: Design, fixed: Mapping[str, float]) -> Array:
    """Where the optimiser starts: a grid of exponents and floors, the rest by linear least squares; (B, P).

    With exponents and floors given, the loss is linear in A and K. Fits with all exponents given try more floors.
    """
    grids = [np.array([fixed[name]]) if name in fixed else EXPONENT_STARTS[name] for name in EXPONENTS]
    floors = MANY_FLOOR_STARTS if all(name in fixed for name in EXPONENTS) else FLOOR_STARTS
    return np.array([_start(design, exponents, floor) for *exponents, floor in product(*grids, floors)])


def _start(design: Design, exponents: Sequence[float], floor: float) -> Array:
    """One start: every group has these exponents, and a floor that is this share of its least loss."""
    theta = np.zeros(len(design.names))
    names = [name.split("[")[0] for name in design.names]
    for index, name in enumerate(names):
        if name in EXPONENTS:
            theta[index] = exponents[EXPONENTS.index(name)]
    loss = np.exp(design.y)
    irreducible = floor * loss.min()
    logs = {term: np.zeros(len(loss)) for term in (1, 2)}
    for index, name in enumerate(names):
        if name in EXPONENTS:
            logs[design.term[index]] += theta[index] * design.X[index]
    scales = [index for index, name in enumerate(names) if name in ("A", "K")]
    basis = np.array([design.X[i] * np.exp(logs[design.term[i]]) / loss for i in scales])
    gram = np.einsum("n,pn,qn->pq", design.weight, basis, basis)
    gram += 1e-12 * np.diag(np.diagonal(gram) + 1e-300)
    found = np.linalg.solve(gram, np.einsum("n,pn,n->p", design.weight, basis, (loss - irreducible) / loss))
    theta[scales] = np.log(np.maximum(found, 0.02 * float(np.mean(loss - irreducible))))
    theta[[index for index, name in enumerate(names) if name == "E"]] = irreducible
    return theta
