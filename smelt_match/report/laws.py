"""Fits as tables, documents and surface files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt_match.budget.surface import Surface
from smelt_match.export.document import SCHEMA_VERSION
from smelt_match.export.table import Column, Row
from smelt_match.scaling.fit import Fit
from smelt_match.scaling.frontier import Coefficients
from smelt_match.units import MINUS

Text = Callable[[Any], str]
EQUATION = "L = E + A·(1 − S)^b / F^a + K / D^c in nats"
FORMS = {
    "surface": f"{EQUATION}; F: training FLOPs per token as the table counts them, D: training tokens",
    "chinchilla": f"{EQUATION} with F = 6·N and b = 0: L = E + A·6^(−a) / N^a + K / D^c; D: training tokens",
}
OBJECTIVE = "Σ Huber(δ = 1e-3) of ln L"


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


def surfaces_yaml(surfaces: Sequence[Surface]) -> str:
    """A surface file, which `plan`, `gain` and `audit` read."""
    from ruamel.yaml import YAML

    yaml, stream = YAML(), io.StringIO()
    yaml.default_flow_style = None
    yaml.width = 200
    yaml.dump({"surfaces": [surface.model_dump(exclude_none=True) for surface in surfaces]}, stream)
    return stream.getvalue()
