"""What a residual mismatch of FLOPs and parameters is worth in loss, along a scaling surface.

Eq. 1 gives 1 − S = (F / F0)·(N0 / N), so that the capacity term of Eq. 2 is A·(N0/F0)^b · F^(b−a) · N^(−b). Its
difference between two points splits exactly, by the logarithmic mean M of the two terms (Ang, Energy Policy 32, 2004,
the additive LMDI decomposition: no residual, and the opposite sign when the ends are exchanged):

    ΔL = −a·M·ln(F'/F)  +  b·M·ln(F'/F)  −  b·M·ln(N'/N)

the FLOPs at equal sparsity, the same FLOPs through the sparsity that they lower, the parameters through the sparsity
that they raise. The data term is the same at both ends. A KV cache has no price. Source: arXiv 2609.01343v3, Eq. 1, 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from smelt_match.budget.deviation import deviation, sparsity
from smelt_match.budget.ledger import Budget
from smelt_match.budget.surface import MOST_NATS, Surface
from smelt_match.units import MINUS

TERMS = ("flops_at_equal_sparsity", "flops_through_sparsity", "params_through_sparsity", "total")


@dataclass(frozen=True)
class Nats:
    """A difference of loss in nats, with the least and the greatest value that the surfaces give."""

    value: float
    low: float
    high: float

    @property
    def turned(self) -> Nats:
        """The same with the other sign: what was lost, as what was gained."""
        return Nats(-self.value, -self.high, -self.low)


@dataclass(frozen=True)
class Price:
    """What a mismatch would change the loss by: negative where the candidate has the lower loss by it.

    Attributes:
        surface: The name of the surface.
        context: The mean attended context that F of both was counted at.
        tokens: D, the training tokens at both ends. Eq. 2 adds its data term, so that D moves no difference; it
            decides only whether the ends lie where the surface was fitted.
        sparsities: S of both ends by Eq. 1, against the one control; None where an end cannot be counted.
        terms: The terms of the difference and their total; empty where nothing can be estimated.
        reasons: Why nothing can be estimated.
        compared: The surfaces that the interval spans.
        rounded: Those of them whose rounding of the printed coefficients is in the interval.
        rmse: The error of the fit of each of them, where it is stated; no interval holds it.
    """

    surface: str
    context: Fraction
    tokens: float
    sparsities: tuple[Fraction, Fraction] | None
    terms: Mapping[str, Nats] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    rmse: Mapping[str, float] = field(default_factory=dict)

    @property
    def explained(self) -> dict[str, Nats]:
        """The gain that the mismatch alone could explain, by two readings of sparsity.

        ``equal_sparsity`` takes both ends at one S, as a label such as "S ≈ 95 %" does, so that FLOPs alone count;
        ``eq1`` takes S of both by Eq. 1, so that surplus FLOPs lower it and surplus parameters raise it.
        """
        readings = {"equal_sparsity": "flops_at_equal_sparsity", "eq1": "total"}
        return {name: self.terms[term].turned for name, term in readings.items() if self.terms}


def price(
    baseline: Budget, candidate: Budget, control: Budget, surface: Surface, others: Iterable[Surface], tokens: float,
    context: Fraction,
) -> Price:  # fmt: skip
    """The price of what ``candidate`` has over ``baseline``, by ``surface``.

    Args:
        baseline: By the convention that the surface's F is counted by, as the others; the shipped ones by ``paper``.
        control: The fully active control of Eq. 1, for both ends.
        others: Further surfaces for the interval; those whose fitted range does not hold the ends, or whose F was
            counted at another context, are left out.
        tokens: D.
        context: The mean attended context that the budgets were counted at: the surface's own, where it states one.
    """
    sparsities = sparsity(baseline, control), sparsity(candidate, control)
    ends = [(float(end.flops), 1 - S) for end, S in zip((baseline, candidate), sparsities, strict=True)]
    reasons = tuple(outside(surface, ends, tokens))
    if reasons:
        return Price(surface.name, context, tokens, sparsities, reasons=reasons)
    off = deviation(candidate, baseline)
    steps = _log_ratio(off.flops), _log_ratio(off.params)
    alike = [other for other in others if other.mean_context == surface.mean_context]
    around = [surface, *(other for other in alike if not any(outside(other, ends, tokens)))]
    spread = [_terms(rounding, ends[0], steps) for member in around for rounding in _roundings(member)]
    terms = {
        name: Nats(value, min(other[name] for other in spread), max(other[name] for other in spread))
        for name, value in _terms(surface, ends[0], steps).items()
    }
    return Price(
        surface.name, context, tokens, sparsities, terms, (), tuple(member.name for member in around),
        tuple(member.name for member in around if member.half_units),
        {member.name: member.rmse for member in around if member.rmse is not None},
    )  # fmt: skip


def _log_ratio(off: Fraction) -> float:
    """ln(1 + off): exact near 0, where the sum would round, and near −1, where ``off`` would."""
    return math.log1p(off) if abs(off) < Fraction(1, 2) else math.log(1 + off)


def outside(surface: Surface, ends: Iterable[tuple[float, Fraction]], tokens: float) -> Iterator[str]:
    """Where points (F, 1 − S) at D lie outside the range that a surface was fitted on, or have no loss, in words."""
    if surface.tokens is not None and not _within(tokens, surface.tokens):
        yield f"{tokens:.4g} training tokens are outside {_words(surface.tokens)}"
    for end, (F, active) in zip(("baseline", "candidate"), ends, strict=True):
        capacity = max(rounding.log_capacity(F, float(active)) for rounding in _roundings(surface))
        if capacity > math.log(MOST_NATS):
            yield f"the {end}'s capacity term is e^{capacity:.4g} nats, more than {MOST_NATS:g}"
        checks = (
            ("training FLOPs per token", F, surface.flops_per_token),
            ("S", float(1 - active), surface.sparsity),
            ("training FLOPs", F * tokens, surface.flops),
        )
        for what, value, limits in checks:
            if limits is not None and not _within(value, limits):
                yield f"the {end}'s {what} {value:.4g} is outside {_words(limits)}".replace(" -", f" {MINUS}")


def _within(value: float, limits: list[float]) -> bool:
    return limits[0] <= value <= limits[1]


def _words(limits: list[float]) -> str:
    return f"{limits[0]:.4g} to {limits[1]:.4g}"


def _terms(surface: Surface, start: tuple[float, Fraction], steps: tuple[float, float]) -> dict[str, float]:
    """The terms from (F, 1 − S) of the baseline over ln(F'/F) and ln(N'/N)."""
    in_flops, in_params = steps
    log_first = surface.log_capacity(start[0], float(start[1]))
    exponent = (surface.b - surface.a) * in_flops - surface.b * in_params
    # from the larger end, so that nothing overflows however far the two are apart
    total = math.copysign(math.exp(log_first + max(exponent, 0.0)) * -math.expm1(-abs(exponent)), exponent)
    mean = total / exponent if exponent else math.exp(log_first)
    values = (-surface.a * mean * in_flops, surface.b * mean * in_flops, -surface.b * mean * in_params)
    return dict(zip(TERMS, (value + 0.0 for value in (*values, total)), strict=True))  # no −0


def _roundings(surface: Surface) -> Iterator[Surface]:
    """The surface, and with each coefficient of the capacity term at either end of what its printed digits claim."""
    yield surface
    half_units = {name: surface.half_units[name] for name in ("A", "a", "b") if name in surface.half_units}
    for signs in product((-1, 1), repeat=len(half_units)) if half_units else ():
        moved: dict[str, float] = {
            name: getattr(surface, name) + sign * half
            for (name, half), sign in zip(half_units.items(), signs, strict=True)
        }
        yield surface.model_copy(update=moved)
