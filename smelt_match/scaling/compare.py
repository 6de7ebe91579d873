"""Two architectures compared: what the target saves at each budget and sparsity, how sure, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt_match.budget.surface import Surface
from smelt_match.scaling.bootstrap import Draws, interval
from smelt_match.scaling.frontier import Coefficients, gain

RANGES = ("C", "S", "C_ref", "F*", "F*_ref", "D*", "D*_ref")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Saving:
    """The comparison at one budget and sparsity.

    Attributes:
        C: Training FLOPs of the target.
        S: Sparsity of both.
        gain: CE Gain, the share of compute saved (Eq. 5).
        loss: The target's frontier loss, in nats.
        compute_reference: Training FLOPs that the reference needs for that loss, infinite where it never gets there.
        flops_per_token, tokens, tokens_per_parameter: F*, D* and TPP of (target, reference) at C.
        outside: Which of C, S, C_ref, F* and D* lie outside the ranges of the fits.
        gain_interval, tokens_per_parameter_interval: 95 % bootstrap intervals, where there are draws.
        gain_shared_floor: The gain if both had one E, where that was fitted.
    """

    C: float
    S: float
    gain: float
    loss: float
    compute_reference: float
    flops_per_token: tuple[float, float]
    tokens: tuple[float, float]
    tokens_per_parameter: tuple[float, float]
    outside: tuple[str, ...]
    gain_interval: Interval | None = None
    tokens_per_parameter_interval: tuple[Interval, Interval] | None = None
    gain_shared_floor: float | None = None


def savings(
    target: Surface,
    reference: Surface,
    budgets: Sequence[float],
    sparsities: Sequence[float],
    draws: Draws | None = None,
    shared_floor: tuple[Coefficients, Coefficients] | None = None,
) -> list[Saving]:
    """What the target saves, for every budget and sparsity.

    Args:
        target, reference: Their surfaces, with the ranges they were fitted on.
        budgets: Training FLOPs of the target.
        sparsities: Sparsities of both.
        draws: Bootstrap draws of both, by the surfaces' names.
        shared_floor: Coefficients of the target and the reference, fitted with one E.
    """
    ours, theirs = Coefficients.of(target), Coefficients.of(reference)
    found = []
    for C in budgets:
        for S in sparsities:
            loss = float(ours.frontier(C, S))
            needed = float(theirs.compute_for(loss, S))
            F = (float(ours.optimal_flops(C, S)), float(theirs.optimal_flops(C, S)))
            D = (float(ours.optimal_tokens(C, S)), float(theirs.optimal_tokens(C, S)))
            ratio = (float(ours.tokens_per_parameter(C, S)), float(theirs.tokens_per_parameter(C, S)))
            intervals = None if draws is None else _intervals(draws, target.name, reference.name, C, S)
            found.append(
                Saving(
                    C, S, float(gain(ours, theirs, C, S)), loss, needed, F, D,
                    ratio, outside(target, reference, C, S),
                    intervals and intervals[0], intervals and intervals[1],
                    None if shared_floor is None else float(gain(*shared_floor, C, S)),
                )
            )  # fmt: skip
    return found


def _intervals(
    draws: Draws, target: str, reference: str, C: float, S: float
) -> tuple[Interval, tuple[Interval, Interval]]:
    ours, theirs = draws.coefficients[target], draws.coefficients[reference]
    parameters = (interval(ours.tokens_per_parameter(C, S)), interval(theirs.tokens_per_parameter(C, S)))
    return interval(gain(ours, theirs, C, S)), parameters


def outside(target: Surface, reference: Surface, C: float, S: float) -> tuple[str, ...]:
    """What lies outside the ranges of the fits: there the surfaces were not seen.

    A surface against itself gives what is extrapolated on its own frontier.

    Args:
        target, reference: Surfaces with the ranges they were fitted on.
        C: Training FLOPs of the target, and of the reference's F* and D*.
        S: Sparsity of both.
    """
    ours, theirs = Coefficients.of(target), Coefficients.of(reference)
    needed = C if reference is target else float(theirs.compute_for(ours.frontier(C, S), S))
    checks = (
        ("C", target.flops, C),
        ("S", target.sparsity, S),
        ("S", reference.sparsity, S),
        ("C_ref", reference.flops, needed),
        ("F*", target.flops_per_token, float(ours.optimal_flops(C, S))),
        ("F*_ref", reference.flops_per_token, float(theirs.optimal_flops(C, S))),
        ("D*", target.tokens, float(ours.optimal_tokens(C, S))),
        ("D*_ref", reference.tokens, float(theirs.optimal_tokens(C, S))),
    )
    return together([[name for name, ends, value in checks if ends and not ends[0] <= value <= ends[1]]])


def together(found: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Everything that lies outside in any of several, in the order of `RANGES`."""
    names = {name for one in found for name in one}
    return tuple(name for name in RANGES if name in names)
