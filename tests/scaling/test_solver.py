"""The optimiser: derivatives, optima, and results that depend on nothing but their own fit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt_match.scaling.design import NAMES, Array, Design, surface_design
from smelt_match.scaling.fit import starts
from smelt_match.scaling.solver import DELTA, GOAL, Batch, solve
from tests.scaling.synthetic import points

DESIGN = surface_design({"smelt": points("smelt", seed=3)})
JOINT = surface_design({name: points(name, seed=3) for name in ("baseline", "smelt")}, ["E", "c"])


def derivative(design: Design, theta: Array, step: float = 1e-6) -> Array:
    """The gradient by central differences."""
    batch, weight = Batch(design), design.weight[None]
    found = []
    for p in range(len(theta)):
        moved = np.repeat(theta[None], 2, axis=0)
        moved[:, p] += np.array([step, -step])
        up, down = batch.objective(batch.residuals(moved)[0], weight)
        found.append((up - down) / (2 * step))
    return np.array(found)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), joint=st.booleans())
def test_gradient_and_hessian_are_the_derivatives_of_the_objective(seed: int, joint: bool) -> None:
    design = JOINT if joint else DESIGN
    theta = starts(design, {})[seed % 324] + np.random.default_rng(seed).normal(0, 0.02, len(design.names))
    batch, weight = Batch(design), design.weight[None]
    residuals, shares = batch.residuals(theta[None])
    gradient, bound = batch.gradient(residuals, shares, weight)
    assert gradient[0] == pytest.approx(derivative(design, theta), rel=1e-4, abs=1e-7)
    assert np.all(np.abs(gradient) <= bound * (1 + 1e-12))
    if np.min(np.abs(np.abs(residuals) - DELTA)) < 1e-5:  # the second derivative jumps where a residual is δ
        return
    hessian = batch.hessian(residuals, shares, weight, np.array([True]))[0]
    step = 1e-6
    for p in range(len(theta)):
        ends = []
        for sign in (1, -1):
            moved = theta.copy()
            moved[p] += sign * step
            ends.append(batch.gradient(*batch.residuals(moved[None]), weight)[0][0])
        column = (ends[0] - ends[1]) / (2 * step)
        assert hessian[:, p] == pytest.approx(column, rel=1e-3, abs=1e-5 * np.abs(hessian).max())


def test_majorising_hessian_is_positive_and_no_smaller_where_it_majorises() -> None:
    theta = starts(DESIGN, {})[:50]
    batch, weight = Batch(DESIGN), np.ones((50, len(DESIGN.y)))
    residuals, shares = batch.residuals(theta)
    hessian = batch.hessian(residuals, shares, weight, np.zeros(50, dtype=bool))
    assert np.all(np.linalg.eigvalsh(hessian)[:, 0] > -1e-12 * np.linalg.eigvalsh(hessian)[:, -1])


def test_coefficients_and_parameters_are_inverses() -> None:
    theta = starts(JOINT, {})[7]
    groups = {group: JOINT.coefficients(theta, group) for group in JOINT.groups}
    assert JOINT.theta(groups) == pytest.approx(theta)
    for group in groups:
        assert [JOINT.names[JOINT.column(name, group)].split("[")[0] for name in NAMES] == list(NAMES)


def test_a_fit_has_the_same_bytes_alone_and_in_a_batch() -> None:
    start = starts(DESIGN, {})[::20]
    together = solve(DESIGN, start)
    for row in range(len(start)):
        alone = solve(DESIGN, start[row : row + 1])
        assert alone.theta.tobytes() == together.theta[row : row + 1].tobytes()
        assert alone.gradient.tobytes() == together.gradient[row : row + 1].tobytes()


def test_frozen_parameters_stay_and_the_others_reach_their_optimum() -> None:
    start = starts(DESIGN, {})[40:44]
    frozen = np.array([name in "abc" for name in DESIGN.names])
    solved = solve(DESIGN, start, frozen=frozen)
    assert np.array_equal(solved.theta[:, frozen], start[:, frozen])
    assert np.all(solved.gradient <= GOAL)
    assert np.all(np.abs(np.array([derivative(DESIGN, theta)[:3] for theta in solved.theta])) < 1e-7)


def test_a_weight_of_two_is_a_point_that_stands_twice() -> None:
    mine = points("smelt", seed=5)
    twice = mine.take(np.concatenate([np.arange(len(mine)), np.arange(6)]))
    double = surface_design({"smelt": twice})
    weight = np.ones((1, len(mine)))
    weight[:, :6] = 2
    design = surface_design({"smelt": mine})
    start = starts(design, {})[100:101]
    weighted = design.coefficients(solve(design, start, weight).theta, "smelt")
    repeated = double.coefficients(solve(double, starts(double, {})[100:101]).theta, "smelt")
    for name in NAMES:
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), rel=1e-8)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from tests.scaling.synthetic import points\n"
        "from smelt_match.scaling.fit import fit\n"
        "from smelt_match.scaling.bootstrap import cell_bootstrap\n"
        "found = fit({'smelt': points('smelt', seed=1)})\n"
        "drawn = cell_bootstrap({'smelt': found}, {'smelt': np.repeat(np.arange(12), 6)}, 200, 0)\n"
        "parts = [found.theta, np.array([found.certificate.condition]), drawn.coefficients['smelt'].K]\n"
        "print(hashlib.sha256(b''.join(part.tobytes() for part in parts)).hexdigest())\n"
    )
    seen = set()
    for threads in ("1", "3"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        seen.add(ran.stdout)
    assert len(seen) == 1
