"""Gains on parts of the validation data: exponents from the aggregate, intercepts of their own.

A subset has too few end points for all six coefficients, so (a, b, c) come from the aggregate fit and (E, A, K) are
fitted, for each architecture apart. Whether the borrowed exponents suit it shows in the ratio of its objective to that
of a fit with exponents of its own. Source: arXiv 2609.01343v3, Sec. 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.bootstrap import MAX_FAILED, Draws, interval
from smelt_match.scaling.compare import outside, together
from smelt_match.scaling.design import EXPONENTS, Array
from smelt_match.scaling.fit import MAX_GRADIENT, Fit, certified, fit
from smelt_match.scaling.frontier import Coefficients, gain
from smelt_match.scaling.solver import solve

FLAGGED_RATIO = 1.2
QUARTILES = 4
OWN_STARTS_EVERY = 12  # 27 of the 324 starts: a subset's own fit only has to bound the objective


@dataclass(frozen=True)
class SubsetFit:
    """One architecture on one subset.

    Attributes:
        fit: With the aggregate's exponents.
        ratio: Its objective over that of a fit with exponents of its own; 1 where both are rounding.
        own_faults: What is wrong with the fit with its own exponents, often that they are not identified.
    """

    fit: Fit
    ratio: float
    own_faults: tuple[str, ...]

    @property
    def flagged(self) -> bool:
        """Whether the borrowed exponents do not suit the subset."""
        return self.ratio > FLAGGED_RATIO


def subset_fit(aggregate: Fit, group: str, loss: Array, what: str) -> SubsetFit:
    """Fit E, A and K of a group to another loss of the same end points.

    Args:
        aggregate: The fit that exponents come from.
        group: The architecture.
        loss: The subset's loss at the group's points, (n,).
        what: The subset's name, for messages.
    """
    part = {group: replace(aggregate.parts[group], loss=loss)}
    k = aggregate.coefficients(group)
    exponents = {name: float(getattr(k, name)) for name in EXPONENTS}
    given = [aggregate.frozen[aggregate.design.column(name, group)] for name in EXPONENTS]
    shared = certified(fit(part, fixed=exponents), f"{what}, {group}")
    kept = {name: exponents[name] for name, is_given in zip(EXPONENTS, given, strict=True) if is_given}
    own = fit(part, fixed=kept, every=OWN_STARTS_EVERY)
    least = min(own.certificate.objective, shared.certificate.objective)
    ratio = shared.certificate.objective / least if least > 1e-20 else 1.0
    return SubsetFit(shared, ratio, tuple(own.certificate.faults))


def subset_draws(found: SubsetFit, group: str, draws: Draws) -> tuple[Coefficients, Array]:
    """The subset refitted in every draw, with that draw's exponents; and the scaled gradients."""
    design, drawn = found.fit.design, draws.coefficients[group]
    start = np.repeat(found.fit.theta[None], len(draws), axis=0)
    for name in EXPONENTS:
        start[:, design.column(name, group)] = getattr(drawn, name)
    solved = solve(design, start, draws.weight[group], found.fit.frozen)
    return design.coefficients(solved.theta, group), solved.gradient


@dataclass(frozen=True)
class SubsetGain:
    """The gain on a subset, or on a group of sources.

    Attributes:
        name: The subset.
        gain: CE Gain (Eq. 5).
        draws: The gain in every bootstrap draw, NaN where some subset did not converge; or None.
        ratios: Objective ratio of (target, reference); NaN for quartiles, which have no fit of their own.
        flagged: Whether a ratio exceeds 1.2.
        outside: What lies outside the ranges of the fits; of a quartile, for any of its sources.
    """

    name: str
    gain: float
    draws: Array | None
    ratios: tuple[float, float]
    flagged: bool
    outside: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval."""
        return None if self.draws is None else interval(self.draws)


@dataclass(frozen=True)
class Difference:
    """How much more is saved on one subset than on another, in the same draws."""

    first: str
    second: str
    value: float
    interval: tuple[float, float] | None


def subset_gains(
    aggregates: tuple[Fit, Fit],
    names: tuple[str, str],
    losses: Mapping[str, tuple[Array, Array]],
    C: float,
    S: float,
    draws: Draws | None = None,
) -> list[SubsetGain]:
    """The gain on every subset.

    Args:
        aggregates: The aggregate fits of target and reference.
        names: Target and reference.
        losses: The losses of target and reference at their points, by subset.
        C, S: Budget and sparsity.
        draws: Bootstrap draws of the aggregate.
    """
    found = []
    for subset, pair in losses.items():
        fits = [subset_fit(one, name, loss, subset) for one, name, loss in zip(aggregates, names, pair, strict=True)]
        ours, theirs = (one.fit.coefficients(name) for one, name in zip(fits, names, strict=True))
        drawn = None
        if draws is not None:
            (a, grad_a), (b, grad_b) = (subset_draws(one, name, draws) for one, name in zip(fits, names, strict=True))
            drawn = np.asarray(gain(a, b, C, S), dtype=np.float64)
            drawn[np.maximum(grad_a, grad_b) > MAX_GRADIENT] = np.nan
        found.append(
            SubsetGain(
                subset, float(gain(ours, theirs, C, S)), drawn, (fits[0].ratio, fits[1].ratio),
                fits[0].flagged or fits[1].flagged,
                outside(*(one.fit.surface(name) for one, name in zip(fits, names, strict=True)), C, S),
            )
        )  # fmt: skip
    return _sound(found, draws)


def _sound(found: list[SubsetGain], draws: Draws | None) -> list[SubsetGain]:
    """NaN in all subsets for a draw that did not converge in one, so that they stay comparable."""
    if draws is None:
        return found
    sound = np.all([np.isfinite(one.draws) for one in found if one.draws is not None], axis=0)
    if np.sum(~sound) > MAX_FAILED * len(draws):
        raise AnswerIsNo(f"{np.sum(~sound):,} of {len(draws):,} draws have no optimum on every subset",
                         "larger subsets, or --draws 0")  # fmt: skip
    return [replace(one, draws=np.where(sound, one.draws, np.nan)) for one in found if one.draws is not None]


def quartile_shares(reference_losses: Array) -> Array:
    """How much of each quartile each source is, in each pair: (quartiles, pairs, sources).

    Within a pair the sources are ranked by the reference's loss and sliced into near-equal groups, the lowest first: 39
    sources into 10, 10, 10 and 9.
    """
    pairs, sources = reference_losses.shape
    shares = np.zeros((QUARTILES, pairs, sources))
    order = np.argsort(reference_losses, axis=1, kind="stable")
    for quartile, ranks in enumerate(np.array_split(np.arange(sources), QUARTILES)):
        for pair in range(pairs):
            shares[quartile, pair, order[pair, ranks]] = 1 / len(ranks)
    return shares


def quartile_gains(found: Sequence[SubsetGain], reference_losses: Array, weight: Array | None) -> list[SubsetGain]:
    """Mean gain of the sources of each quartile, over pairs.

    Args:
        found: The gain of each source.
        reference_losses: The reference's loss of each source in each pair, (pairs, sources).
        weight: How often each pair was drawn, (draws, pairs), where the sources have draws.
    """
    shares = quartile_shares(reference_losses)
    values = np.array([one.gain for one in found])
    result = []
    for quartile in range(QUARTILES):
        mean = np.einsum("ps->s", shares[quartile]) / len(reference_losses)
        drawn = None
        if weight is not None and found[0].draws is not None:
            each = np.array([one.draws for one in found])
            mix = np.einsum("dp,ps->ds", weight / weight.sum(axis=1, keepdims=True), shares[quartile])
            drawn = np.einsum("ds,sd->d", mix, each)
        value = float(np.einsum("s,s->", mean, values))
        nan = float("nan")
        told = together(one.outside for one, part in zip(found, mean, strict=True) if part > 0)
        result.append(SubsetGain(f"Q{quartile + 1}", value, drawn, (nan, nan), False, told))
    return result


def differences(found: Sequence[SubsetGain]) -> list[Difference]:
    """Every pair of subsets, the larger gain first."""
    told = []
    for one, two in combinations(sorted(found, key=lambda subset: -subset.gain), 2):
        both = one.draws is not None and two.draws is not None
        ends = interval(one.draws - two.draws) if both else None  # type: ignore[operator]
        told.append(Difference(one.name, two.name, one.gain - two.gain, ends))
    return told
