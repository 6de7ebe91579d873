"""Levenberg–Marquardt and Newton over many fits at once: starts and bootstrap draws are one batch axis.

The objective is Σ_n w_n·Huber_δ(ln L_n − y_n). Its majorising Hessian (weights min(1, δ/|r|), as in reweighted least
squares) carries a fit near the optimum, its exact one finishes: Huber with a small δ is close to absolute errors, where
steps of the first kind alone converge slowly. Sums run in an order that depends on neither the batch nor the number of
threads, so that a fit has the same bytes alone and among thousands.

Legend: B fits, n end points, T terms, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from smelt_match.scaling.design import Array, Design, Mask

DELTA = 1e-3
MAX_ITERATIONS = 300
GOAL = 1e-12  # of the scaled gradient; rounding ends most fits between 1e-13 and this
GIVE_UP = 1e12  # damping at which no step improves any more
SLICE = 40_000  # values of one array: what a step works on stays in cache
NEAR = 1e-2  # relative decrease below which the exact Hessian takes over


@dataclass(frozen=True)
class Solved:
    """Where a batch of fits ended.

    Attributes:
        theta: Parameters, (B, P).
        objective: Objectives, (B,).
        gradient: Scaled gradient norms, (B,): the largest |g_p| over the parameters that no bound holds, divided by
            the largest value that it could take, δ·Σ w|J_p|.
        iterations: Steps that were tried, (B,).
    """

    theta: Array
    objective: Array
    gradient: Array
    iterations: NDArray[np.int64]


class Batch:
    """The objective of a design for a batch of weights, and its derivatives."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.terms = range(max(design.term) + 1)
        self.members = [[p for p, t in enumerate(design.term) if t == term] for term in self.terms]
        self.blocks = [np.ascontiguousarray(design.X[members]) for members in self.members]
        self.products = {
            (t, u): np.ascontiguousarray((self.blocks[t][:, None] * self.blocks[u][None]).reshape(-1, len(design.y)))
            for t in self.terms
            for u in self.terms
            if t <= u
        }

    def residuals(self, theta: Array) -> tuple[Array, list[Array]]:
        """ln L − y, and what d ln L is for each term's linear form: (B, n), and T of (B, n)."""
        floor, *logs = (
            np.einsum("bp,pn->bn", theta[:, members], block)
            for members, block in zip(self.members, self.blocks, strict=True)
        )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a step too far is not taken
            terms = [np.exp(log) for log in logs]
            loss = floor
            for term in terms:
                loss = loss + term
            return np.asarray(np.log(loss) - self.design.y), [1 / loss, *(term / loss for term in terms)]

    def objective(self, residuals: Array, weight: Array) -> Array:
        """Σ w·Huber(r), (B,)."""
        size = np.abs(residuals)
        inner = np.minimum(size, DELTA)
        return np.asarray(np.einsum("bn,bn->b", weight, inner * (size - 0.5 * inner)))

    def gradient(self, residuals: Array, shares: list[Array], weight: Array) -> tuple[Array, Array]:
        """The gradient and the bound of each of its entries, (B, P)."""
        psi = weight * np.clip(residuals, -DELTA, DELTA)
        shape = (len(residuals), len(self.design.names))
        gradient, bound = np.zeros(shape), np.zeros(shape)
        for t in self.terms:
            gradient[:, self.members[t]] = np.einsum("bn,pn->bp", psi * shares[t], self.blocks[t])
            bound[:, self.members[t]] = DELTA * np.einsum("bn,pn->bp", weight * shares[t], np.abs(self.blocks[t]))
        return gradient, bound

    def hessian(self, residuals: Array, shares: list[Array], weight: Array, exact: Mask) -> Array:
        """The exact Hessian where ``exact``, the majorising one elsewhere: (B, P, P)."""
        size = np.abs(residuals)
        psi = np.where(exact[:, None], weight * np.clip(residuals, -DELTA, DELTA), 0.0)
        inner = np.where(exact[:, None], size <= DELTA, np.minimum(1, DELTA / np.maximum(size, 1e-300)))
        outer = weight * inner - psi
        out = np.zeros((len(residuals), len(self.design.names), len(self.design.names)))
        for (t, u), product in self.products.items():
            weighed = outer * shares[u]
            if t == u > 0:  # the floor is linear
                weighed = weighed + psi
            block = np.einsum("bn,kn->bk", weighed * shares[t], product)
            block = block.reshape(-1, len(self.members[t]), len(self.members[u]))
            rows, columns = np.ix_(self.members[t], self.members[u])
            out[:, rows, columns] = block
            if t != u:
                out[:, columns.T, rows.T] = block.transpose(0, 2, 1)
        return out

    def jacobian(self, theta: Array) -> Array:
        """The derivatives of ln L of one fit, (n, P)."""
        _, shares = self.residuals(theta[None])
        return np.array([shares[t][0] * x for t, x in zip(self.design.term, self.design.X, strict=True)]).T

    def held(self, theta: Array, gradient: Array) -> Mask:
        """Parameters at a bound that the objective would fall beyond, (B, P)."""
        at_low, at_high = theta <= self.design.low, theta >= self.design.high
        return (at_low & (gradient > 0)) | (at_high & (gradient < 0))

    def judge(self, theta: Array, weight: Array, frozen: Mask) -> tuple[Array, Array]:
        """The objective and the scaled gradient at given parameters, (B,) each."""
        run = _Run(self, theta, weight, frozen)
        return run.value, run.scaled


def solve(design: Design, start: Array, weight: Array | None = None, frozen: Mask | None = None) -> Solved:
    """Minimise from every start, in slices that fit the processor's cache.

    Args:
        design: What to fit.
        start: (B, P).
        weight: Weights of the end points in each fit, (B, n); default: the design's.
        frozen: Parameters that stay as they start, (P,).
    """
    batch = Batch(design)
    start = np.clip(start, design.low, design.high)
    weight = np.broadcast_to(design.weight, (len(start), len(design.y))) if weight is None else weight
    frozen = np.zeros(start.shape[1], dtype=bool) if frozen is None else frozen
    size = max(1, SLICE // len(design.y))
    slices = [slice(first, first + size) for first in range(0, len(start), size)]
    parts = [_solve(_Run(batch, start[part], weight[part], frozen)) for part in slices]
    return Solved(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Solved)))


def _solve(run: _Run) -> Solved:
    start = run.theta
    theta, objective, gradient = run.theta.copy(), np.empty(len(start)), np.empty(len(start))
    iterations = np.zeros(len(start), dtype=np.int64)
    rows = np.arange(len(start))
    for iteration in range(MAX_ITERATIONS + 1):
        done = run.done() if iteration < MAX_ITERATIONS else np.ones(len(rows), dtype=bool)
        if done.any():
            ended = rows[done]
            theta[ended], objective[ended], gradient[ended] = run.theta[done], run.value[done], run.scaled[done]
            iterations[ended] = iteration
            if done.all():
                break
            rows = rows[~done]
            run.keep(~done)
        run.step()
    return Solved(theta, objective, gradient, iterations)


class _Run:
    """The fits of a batch that have not ended yet."""

    def __init__(self, batch: Batch, theta: Array, weight: Array, frozen: Mask) -> None:
        self.batch, self.theta, self.weight, self.frozen = batch, theta, weight, frozen
        self.damping = np.full(len(theta), 1e-3)
        self.exact = np.zeros(len(theta), dtype=bool)
        self.idle = np.zeros(len(theta), dtype=np.int64)
        self.residuals, self.shares = batch.residuals(theta)
        self.value = batch.objective(self.residuals, weight)
        self._differentiate()

    def _differentiate(self) -> None:
        self.gradient, bound = self.batch.gradient(self.residuals, self.shares, self.weight)
        self.held = self.batch.held(self.theta, self.gradient) | self.frozen
        self.gradient[self.held] = 0
        self.scaled = np.max(np.abs(self.gradient) / np.maximum(bound, 1e-300), axis=1)

    def done(self) -> Mask:
        """Fits that are at their goal, or that no step improves."""
        return np.asarray((self.scaled <= GOAL) | (self.damping >= GIVE_UP) | (self.idle >= 8))

    def keep(self, mask: Mask) -> None:
        """Go on with some of the fits."""
        for name in ("theta", "weight", "damping", "exact", "idle", "residuals", "value", "gradient", "held", "scaled"):
            setattr(self, name, getattr(self, name)[mask])
        self.shares = [share[mask] for share in self.shares]

    def step(self) -> None:
        """One damped step of every fit, taken where it improves."""
        design = self.batch.design
        hessian = self.batch.hessian(self.residuals, self.shares, self.weight, self.exact)
        diagonal = np.abs(np.einsum("bpp->bp", hessian))
        scale = np.maximum(diagonal, 1e-12 * np.max(diagonal, axis=1, keepdims=True) + 1e-300)
        hessian[np.broadcast_to(self.held[:, :, None], hessian.shape)] = 0
        hessian[np.broadcast_to(self.held[:, None, :], hessian.shape)] = 0
        index = np.arange(scale.shape[1])
        hessian[:, index, index] += np.where(self.held, scale, self.damping[:, None] * scale + 1e-14 * scale)
        step = -np.linalg.solve(hessian, self.gradient[..., None])[..., 0]
        theta = np.clip(self.theta + step, design.low, design.high)
        residuals, shares = self.batch.residuals(theta)
        value = self.batch.objective(residuals, self.weight)
        gain = self.value - value
        downhill = np.einsum("bp,bp->b", step, self.gradient) < 0
        better = downhill & (gain > 0)
        level = downhill & (np.abs(gain) <= 1e-12 * self.value)  # rounding hides the decrease: look at the gradient
        taken = better | level
        before = self.scaled
        self.theta = np.where(taken[:, None], theta, self.theta)
        self.residuals = np.where(taken[:, None], residuals, self.residuals)
        self.shares = [np.where(taken[:, None], new, share) for new, share in zip(shares, self.shares, strict=True)]
        self.exact |= taken & (gain <= NEAR * self.value)
        self.value = np.where(taken, value, self.value)
        self._differentiate()
        stuck = level & (self.scaled >= 0.5 * before)
        self.idle = np.where(stuck, self.idle + 1, np.where(taken, 0, self.idle))
        self.damping = np.where(taken, self.damping / 8, np.maximum(self.damping, 1e-4) * 8)
        self.damping[self.damping < 1e-8] = 0
