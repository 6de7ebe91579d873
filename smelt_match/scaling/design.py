"""A loss as a floor and a sum of exponentials whose logs are linear in the parameters.

    L_n = Σ_{p of 0} X_pn·θ_p + Σ_{t > 0} exp(Σ_{p of t} X_pn·θ_p)

Eq. 2 is the case t = (E, capacity, data): L = E + exp(α + b·s − a·f) + exp(κ − c·d) with s = ln(1 − S), f = ln F and
d = ln D centred, so that all parameters are of order one. E itself is the parameter, not its log: where the data say
E = 0, that is a bound, and not infinitely far away. Exponents that several architectures share are columns
that all of them use, given ones are frozen at their value: every fit of this package is one `Design`. Sources:
arXiv 2609.01343v3, Eq. 2; arXiv 2203.15556, Approach 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from smelt_match.scaling.frontier import Coefficients

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TERMS = ("E", "A", "K")
EXPONENTS = ("a", "b", "c")
NAMES = (*TERMS, *EXPONENTS)
TERM_OF = {"E": 0, "A": 1, "K": 2, "a": 1, "b": 1, "c": 2}
EXPONENT_RANGE = {"a": (1e-3, 5.0), "b": (-5.0, 5.0), "c": (1e-3, 5.0)}
SCALE_RANGE = (-60.0, 60.0)


@dataclass(frozen=True)
class Points:
    """End points as columns, (n,) each: F training FLOPs per token, S sparsity, D tokens, loss in nats, weight."""

    F: Array
    S: Array
    D: Array
    loss: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, index: NDArray[np.int64] | Mask) -> Points:
        """Some of the points."""
        return Points(*(getattr(self, field.name)[index] for field in fields(self)))

    @property
    def C(self) -> Array:
        """Training FLOPs, F·D."""
        return self.F * self.D


def joined(parts: Sequence[Points]) -> Points:
    """Points of several groups, one after the other."""
    return Points(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Points)))


@dataclass(frozen=True)
class Design:
    """What a fit solves for.

    Attributes:
        X: What each parameter is multiplied with in its term, or in the log of it, (P, n).
        term: The term of each parameter, P integers.
        y: Log of the observed losses, (n,).
        weight: Weights of the end points, (n,).
        names: The parameters, P of them; ``A[smelt]`` belongs to one group alone.
        centres: Mean of ln F, ln(1 − S) and ln D, under the exponent that each is multiplied with.
        groups: The groups of points, in the order of their rows.
        low, high: Bounds of the parameters, (P,).
    """

    X: Array
    term: tuple[int, ...]
    y: Array
    weight: Array
    names: tuple[str, ...]
    centres: Mapping[str, float]
    groups: tuple[str, ...]
    low: Array
    high: Array

    def column(self, name: str, group: str) -> int:
        """The column of a coefficient in a group."""
        return self.names.index(name if name in self.names else f"{name}[{group}]")

    def coefficients(self, theta: Array, group: str) -> Coefficients:
        """The coefficients of a group, from parameters whose last axis is P."""
        E, alpha, kappa, a, b, c = (theta[..., self.column(name, group)] for name in NAMES)
        A = np.exp(alpha + a * self.centres["a"] - b * self.centres["b"])
        return Coefficients(E, A, np.exp(kappa + c * self.centres["c"]), a, b, c)

    def theta(self, found: Mapping[str, Coefficients]) -> Array:
        """The parameters of coefficients, the inverse of `coefficients`; shared ones are taken from the first group."""
        values = np.full(len(self.names), np.nan)
        for group, k in reversed(list(found.items())):
            alpha = np.log(k.A) - k.a * self.centres["a"] + k.b * self.centres["b"]
            kappa = np.log(k.K) - k.c * self.centres["c"]
            for name, value in zip(NAMES, (k.E, alpha, kappa, k.a, k.b, k.c), strict=True):
                values[self.column(name, group)] = value
        return values


def surface_design(parts: Mapping[str, Points], shared: Sequence[str] = ()) -> Design:
    """The design of Eq. 2 for one group of points, or for several that share some of E, a, b and c."""
    groups, whole = tuple(parts), joined(list(parts.values()))
    member = np.repeat(np.arange(len(groups)), [len(points) for points in parts.values()])
    logs = {"a": np.log(whole.F), "b": np.log1p(-whole.S), "c": np.log(whole.D)}
    centres = {name: float(np.mean(column)) for name, column in logs.items()}
    columns: list[Array] = []
    names: list[str] = []
    for name in NAMES:
        values = np.ones(len(whole)) if name in TERMS else logs[name] - centres[name]
        values = -values if name in ("a", "c") else values
        if name in shared or len(groups) == 1:
            columns.append(values)
            names.append(name)
        else:  # a group's parameter is absent from the rows of the others
            columns += [values * (member == index) for index in range(len(groups))]
            names += [f"{name}[{group}]" for group in groups]
    y = np.log(whole.loss)
    ranges = EXPONENT_RANGE | {"E": (0.0, float(whole.loss.max()))}
    bounds = [ranges.get(name[0], SCALE_RANGE) for name in names]
    return Design(
        np.array(columns), tuple(TERM_OF[name[0]] for name in names), y, whole.weight, tuple(names), centres, groups,
        np.array([low for low, _ in bounds]), np.array([high for _, high in bounds]),
    )  # fmt: skip
