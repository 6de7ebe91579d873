"""Fits as tables, documents and surface files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt_match.budget.surface import Surface
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.scaling.fit import Fit
from smelt_match.scaling.frontier import Coefficients
from smelt_match.scaling.isoflop import IsoFlop
from smelt_match.scaling.recurrence import GROUP, RecurrenceFit
from smelt_match.scaling.subsets import FLAGGED_RATIO, SubsetFit
from smelt_match.units import MINUS

Text = Callable[[Any], str]
EQUATION = "L = E + A·(1 − S)^b / F^a + K / D^c in nats"
FORMS = {
    "surface": f"{EQUATION}; F: training FLOPs per token as the table counts them, D: training tokens",
    "chinchilla": f"{EQUATION} with F = 6·N and b = 0: L = E + A·6^(−a) / N^a + K / D^c; D: training tokens",
}
OUTSIDE = "outside the fit: extrapolated in what is named; the surfaces were not seen there"
OBJECTIVE = "Σ Huber(δ = 1e-3) of ln L"
SUBSET_NOTE = (
    "exponents from each architecture's fit to the loss itself; objective ratio: with those over with its own, flagged "
    f"above {FLAGGED_RATIO}"
)


def finite(value: Any) -> Any:
    """A value as JSON carries it: infinite and unknown numbers become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def signed(text: str) -> str:
    """A number with the typographic minus."""
    return text.replace("-", MINUS)


def significant(digits: int) -> Text:
    """A column's text with so many significant digits."""
    return lambda value: signed(f"{value:.{digits}g}")


def fixed_point(digits: int) -> Text:
    """A column's text with so many decimals."""
    return lambda value: signed(f"{value:.{digits}f}")


def scientific(digits: int) -> Text:
    """A column's text as 1.234e+5."""
    return lambda value: signed(f"{value:.{digits}e}")


def share(digits: int = 1) -> Text:
    """A column's text as a percentage."""
    return lambda value: signed(f"{value * 100:.{digits}f} %")


COEFFICIENTS = (
    Column("E", "E", fixed_point(4)),
    Column("A", "A", scientific(3)),
    Column("K", "K", scientific(3)),
    Column("a", "a", fixed_point(4)),
    Column("b", "b", fixed_point(4)),
    Column("c", "c", fixed_point(4)),
    Column("gamma", "γ", fixed_point(3)),
    Column("rmse", "RMSE (nats)", fixed_point(5)),
)
CERTIFICATE = (
    Column("num_points", "points"),
    Column("scaled_gradient", "gradient", scientific(0)),
    Column("starts_agree", "starts agree", share(0)),
    Column("condition_number", "condition", significant(3)),
    Column("bounds_active", "at bounds", lambda value: value or "none"),
)
FIT = (Column("arch", "architecture", left=True), *COEFFICIENTS, *CERTIFICATE)

EXCLUDED = (
    Column("excluded", "rows left out", data_only=True),
    Column("num_rows_excluded", "their number", data_only=True),
)
AS_COUNTED = "as the end points count it"
CONVENTIONS = {
    "surface": f"F {AS_COUNTED}",
    "chinchilla": f"F = 6·N, N {AS_COUNTED}",
    "phi": f"N {AS_COUNTED}",
    "isoflop": f"C = 6·N·D, N {AS_COUNTED}",
}
# What a note says under other formats' tables.
GIVEN = (
    Column("convention", "convention", data_only=True),
    Column("shared", "shared", data_only=True),
    Column("fixed", "given, not fitted", data_only=True),
    *EXCLUDED,
    Column("weighted", "weighted", data_only=True),
)


def fit_rows(fits: Mapping[str, Fit]) -> list[Row]:
    """A row an architecture."""
    rows = []
    for arch, found in fits.items():
        k, certificate = found.coefficients(arch), found.certificate
        rows.append(
            {
                "arch": arch, **coefficients_json(k), "rmse": found.rmse(arch), "num_points": len(found.parts[arch]),
                "scaled_gradient": certificate.gradient, "starts_agree": certificate.agree,
                "condition_number": certificate.condition, "bounds_active": ", ".join(certificate.active),
            }
        )  # fmt: skip
    return rows


def coefficients_json(k: Coefficients) -> dict[str, float]:
    """Coefficients as data."""
    return {name: float(getattr(k, name)) for name in ("E", "A", "K", "a", "b", "c", "gamma")}


SUBSETS = (
    Column("arch", "architecture", left=True),
    Column("subset", "source", left=True),
    *COEFFICIENTS[:3],
    COEFFICIENTS[-1],
    Column("objective_ratio", "objective ratio", fixed_point(3)),
    Column("flag", "flag", left=True),
    *CERTIFICATE[1:],
)


def subset_rows(found: Mapping[str, Mapping[str, SubsetFit]]) -> list[Row]:
    """A row for each architecture and source."""
    rows = []
    for arch, subsets in found.items():
        for name, one in subsets.items():
            (row,) = fit_rows({arch: one.fit})
            flag = "exponents do not suit" if one.flagged else ""
            rows.append(row | {"subset": name, "objective_ratio": one.ratio, "flag": flag})
    return rows


def subset_document(found: Mapping[str, Mapping[str, SubsetFit]], aggregate: dict[str, Any]) -> dict[str, Any]:
    """The document of `fit --by source`: the aggregate's, and the sources."""
    return aggregate | {
        "sources": [
            {
                "arch": arch, "source": name, "coefficients": coefficients_json(one.fit.coefficients(arch)),
                "rmse_nats": one.fit.rmse(arch), "objective_ratio": one.ratio, "flagged": one.flagged,
                "own_exponents_faults": list(one.own_faults), "certificate": one.fit.certificate.as_json(),
            }
            for arch, subsets in found.items()
            for name, one in subsets.items()
        ]
    }  # fmt: skip


def fit_document(fits: Mapping[str, Fit], form: str, shared: Sequence[str]) -> dict[str, Any]:
    """The document of `fit`."""
    return {
        "schema_version": SCHEMA_VERSION, "form": form, "equation": FORMS[form], "objective": OBJECTIVE,
        "shared": list(shared),
        "fits": [
            {
                "arch": arch, "coefficients": coefficients_json(found.coefficients(arch)),
                "rmse_nats": found.rmse(arch), "num_points": len(found.parts[arch]),
                "ranges": {
                    name: value for name, value in found.surface(arch).model_dump().items() if isinstance(value, list)
                },
                "certificate": found.certificate.as_json(),
            }
            for arch, found in fits.items()
        ],
    }  # fmt: skip


RECURRENCE = (Column("phi", "φ", fixed_point(4)), *COEFFICIENTS[:4], COEFFICIENTS[5], COEFFICIENTS[7], *CERTIFICATE)
RECURRENCE_NOTE = (
    "L = E + A / (N_once + r^φ·N_rec)^a + K / D^c in nats (arXiv 2604.21106); φ = 1: a recurrence is worth a block of "
    "its own, 0: nothing"
)


def recurrence_row(found: RecurrenceFit) -> Row:
    """The law as a row, with A over N instead of 6·N."""
    (row,) = fit_rows({GROUP: found.fit})
    return row | {
        "phi": found.phi, "A": row["A"] / 6 ** row["a"], "condition_number": found.condition,
        "scaled_gradient": max(found.gradient, found.fit.certificate.gradient),
    }  # fmt: skip


def recurrence_document(found: RecurrenceFit) -> dict[str, Any]:
    """The document of `fit --form phi`."""
    row = recurrence_row(found)
    return {
        "schema_version": SCHEMA_VERSION, "form": "phi", "equation": RECURRENCE_NOTE.split(";")[0],
        "objective": OBJECTIVE, "phi": found.phi,
        "coefficients": {name: row[name] for name in ("E", "A", "K", "a", "c")}, "rmse_nats": row["rmse"],
        "num_points": row["num_points"],
        "certificate": found.fit.certificate.as_json()
        | {"scaled_gradient_phi": found.gradient, "condition_number": found.condition},
    }  # fmt: skip


ISOFLOP = (
    Column("arch", "architecture", left=True),
    Column("flops", "C", scientific(3)),
    Column("params", "N*", scientific(3)),
    Column("loss", "loss (nats)", fixed_point(4)),
    Column("num_points", "sizes"),
)


def isoflop_rows(curves: Mapping[str, IsoFlop]) -> list[Row]:
    """A row for each architecture and budget."""
    return [
        {"arch": arch, "flops": one.C, "params": one.N, "loss": one.loss, "num_points": one.num_points}
        for arch, found in curves.items()
        for one in found.optima
    ]


def isoflop_note(curves: Mapping[str, IsoFlop]) -> str:
    """The exponents, and the budgets without a minimum."""
    lines = ["N*: minimum of the Akima interpolation of ln L over ln N at each budget, C = 6·N·D"]
    for arch, found in curves.items():
        out = ", ".join(f"{C:.3g}".replace("e+", "e") for C in found.left_out)
        lines.append(f"{arch}: N* ∝ C^{found.exponent:.3f}" + (f"; without a minimum inside: {out}" if out else ""))
    return "\n".join(lines)


def isoflop_document(curves: Mapping[str, IsoFlop]) -> dict[str, Any]:
    """The document of `fit --form isoflop`."""
    return {
        "schema_version": SCHEMA_VERSION, "form": "isoflop",
        "curves": [
            {"arch": arch, "exponent": found.exponent, "coefficient": found.coefficient,
             "left_out_flops": list(found.left_out)}
            for arch, found in curves.items()
        ],
        "optima": isoflop_rows(curves),
    }  # fmt: skip


def surfaces_yaml(surfaces: Sequence[Surface]) -> str:
    """A surface file, which `plan`, `gain` and `audit` read."""
    from ruamel.yaml import YAML

    yaml, stream = YAML(), io.StringIO()
    yaml.default_flow_style = None
    yaml.width = 200
    yaml.dump({"surfaces": [surface.model_dump(exclude_none=True) for surface in surfaces]}, stream)
    return stream.getvalue()
