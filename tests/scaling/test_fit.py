"""Fits and their certificates: what passes, what does not, and that the literal recipe does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from smelt_match.budget.surface import Surface, read_surfaces, shipped_surfaces
from smelt_match.errors import AnswerIsNo
from smelt_match.report.laws import surfaces_yaml
from smelt_match.scaling.design import NAMES, Points
from smelt_match.scaling.fit import MAX_GRADIENT, Certificate, Fit, certified, fit, judged, starts
from smelt_match.scaling.frontier import Coefficients, gain
from smelt_match.scaling.lbfgsb import solve_lbfgsb
from smelt_match.scaling.solver import DELTA, Batch, Solved
from tests.scaling.synthetic import ARCHITECTURES, points

FITS = {arch: fit({arch: points(arch)}) for arch in ARCHITECTURES}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_noise_free_end_points_give_their_coefficients_back(arch: str) -> None:
    found, truth = FITS[arch].coefficients(arch), shipped_surfaces()[arch]
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-8)
    certificate = FITS[arch].certificate
    assert certificate.faults == []
    assert certificate.agree == 1.0
    assert certificate.starts == 324
    assert certificate.gradient < 1e-11
    assert FITS[arch].rmse(arch) < 1e-12


def test_noise_free_gains_are_those_of_the_coefficients() -> None:
    ours, theirs = (FITS[arch].coefficients(arch) for arch in ("smelt", "baseline"))
    found = [100 * float(gain(ours, theirs, 1e21, S)) for S in (0.85, 0.95, 0.97)]
    assert found == pytest.approx([17.943, 15.676, 14.575], abs=5e-4)


def literal(points: Points, start: Coefficients, jac: bool) -> Coefficients:
    """The recipe word by word: raw coefficients, the plain objective, SciPy's default tolerances."""

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        E, A, K, a, b, c = x
        capacity, data = A * (1 - points.S) ** b / points.F**a, K / points.D**c
        loss = E + capacity + data
        residual = np.log(loss) - np.log(points.loss)
        size = np.abs(residual)
        inner = np.minimum(size, DELTA)
        psi = np.clip(residual, -DELTA, DELTA) / loss
        gradient = [
            psi.sum(), (psi * capacity).sum() / A, (psi * data).sum() / K, -(psi * capacity * np.log(points.F)).sum(),
            (psi * capacity * np.log1p(-points.S)).sum(), -(psi * data * np.log(points.D)).sum(),
        ]  # fmt: skip
        return float((inner * (size - 0.5 * inner)).sum()), np.array(gradient)

    bounds = [(1e-3, None), (1e-3, None), (1e-3, None), (1e-3, 5), (-5, 5), (1e-3, 5)]
    x = np.array([float(getattr(start, name)) for name in NAMES])
    function = objective if jac else (lambda values: objective(values)[0])
    ended = minimize(function, x, jac=jac or None, method="L-BFGS-B", bounds=bounds)
    assert ended.success  # SciPy says that it converged
    return Coefficients(*ended.x)


@pytest.mark.parametrize(("arch", "jac"), [("baseline", True), ("smelt", True), ("smelt", False)])
def test_literal_recipe_at_default_tolerances_does_not_pass(arch: str, jac: bool) -> None:
    mine = points(arch, seed=11)
    sound = fit({arch: mine})
    design = sound.design
    begin = starts(design, {})[::54]
    ends = np.array([design.theta({arch: literal(mine, design.coefficients(theta, arch), jac)}) for theta in begin])
    frozen = np.zeros(6, dtype=bool)
    value, gradient = Batch(design).judge(ends, np.ones((len(ends), len(mine))), frozen)
    found = judged(design, {arch: mine}, frozen, Solved(ends, value, gradient, np.zeros(len(ends), dtype=np.int64)))
    assert found.certificate.gradient > 1e4 * MAX_GRADIENT
    assert found.certificate.objective > 1.05 * sound.certificate.objective
    with pytest.raises(AnswerIsNo, match="not at an optimum") as caught:
        certified(found, arch)
    assert "starts disagree" in caught.value.message


def test_scaled_lbfgsb_ends_where_newton_does() -> None:
    mine = {"smelt": points("smelt", seed=4)}
    ours, frozen = fit(mine), np.zeros(6, dtype=bool)
    solved = solve_lbfgsb(ours.design, starts(ours.design, {})[::81], frozen)
    theirs = certified(judged(ours.design, mine, frozen, solved), "smelt")
    assert theirs.certificate.objective == pytest.approx(ours.certificate.objective, rel=1e-8)
    assert theirs.certificate.agree == 1.0
    assert np.all(solved.gradient < MAX_GRADIENT)


def test_given_exponents_are_given_to_lbfgsb_too() -> None:
    mine, given = {"smelt": points("smelt", seed=4)}, {"a": 0.39, "b": 0.15, "c": 0.7}
    ours, theirs = fit(mine, fixed=given), fit(mine, fixed=given, optimizer="lbfgsb")
    assert theirs.certificate.objective == pytest.approx(ours.certificate.objective, rel=1e-8)
    assert float(theirs.coefficients("smelt").a) == 0.39


def test_shared_parameters_are_equal_and_cost_some_objective() -> None:
    parts = {arch: points(arch, seed=9) for arch in ARCHITECTURES}
    alone = sum(fit({arch: mine}).certificate.objective for arch, mine in parts.items())
    joint = certified(fit(parts, ["a", "b", "c"]), "both")
    ours, theirs = (joint.coefficients(arch) for arch in ARCHITECTURES)
    assert (ours.a, ours.b, ours.c) == (theirs.a, theirs.b, theirs.c)
    assert ours.E != theirs.E
    assert joint.certificate.objective > alone


def test_given_exponents_are_kept() -> None:
    found = fit({"smelt": points("smelt")}, fixed={"b": 0.2})
    assert float(found.coefficients("smelt").b) == 0.2
    assert found.certificate.objective > 1e-8


def test_a_floor_of_zero_is_an_answer_and_told() -> None:
    mine = points("smelt")
    truth = Coefficients(0.0, 30.0, 300.0, 0.12, 0.05, 0.25)
    found = certified(fit({"x": replace(mine, loss=truth.loss(mine.F, mine.S, mine.D) - 0.01)}), "x")
    assert found.certificate.active == ("E",)
    assert found.surface("x").E == 0


def test_a_surface_goes_through_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    surfaces = [FITS[arch].surface(arch, "here") for arch in ARCHITECTURES]
    file = tmp_path / "surface.yaml"
    file.write_text(surfaces_yaml(surfaces))
    assert list(read_surfaces(file).values()) == surfaces
    assert surfaces[0].flops == pytest.approx([1.3e19, 2.2e21], rel=0.01)  # the window that the paper states


def passing(**changes: object) -> Certificate:
    """A sound certificate with something changed."""
    return replace(Certificate(1e-13, 324, 1.0, 50.0, ("E",), 1e-4), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gradient": 2e-6}, "not at an optimum"),
        ({"gradient": float("nan")}, "not at an optimum"),
        ({"agree": 0.01}, "starts disagree"),
        ({"condition": 1e6}, "not identified"),
        ({"condition": float("inf")}, "not identified"),
        ({"active": ("E", "c")}, "at a bound: c"),
        ({"active": ("K[smelt]",)}, "at a bound: K[smelt]"),
    ],
)
def test_each_fault_of_a_certificate_is_told(changes: dict[str, object], told: str) -> None:
    assert passing().faults == []
    (fault,) = passing(**changes).faults
    assert told in fault
    assert not passing(**changes).as_json()["passes"]


def test_end_points_that_do_not_identify_a_surface_are_refused() -> None:
    mine = points("smelt", seed=2)
    two_scales = mine.take(np.flatnonzero(mine.F < 2e9)[::4])
    found = fit({"smelt": two_scales})
    assert isinstance(found, Fit)
    surface = Surface(name="flat", E=1.0, A=1.0, K=1e-9, a=0.5, b=0.1, c=0.5)
    flat = replace(mine, loss=Coefficients.of(surface).loss(mine.F, mine.S, mine.D))
    with pytest.raises(AnswerIsNo):
        certified(fit({"flat": flat}), "flat")
