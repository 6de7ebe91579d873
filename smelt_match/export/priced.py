"""What a mismatch is worth in nats, as a table, words and JSON."""

from __future__ import annotations

from typing import Any

from smelt_match.budget.mismatch import TERMS, Nats, Price
from smelt_match.export.table import Column, Format, comments, render
from smelt_match.units import MINUS, fraction_text, short_fraction

WORDS = dict(
    zip(
        TERMS,
        ("FLOPs, at equal sparsity", "FLOPs, by the sparsity they lower", "parameters, by the sparsity they raise",
         "together, sparsity by Eq. 1"), strict=True,
    )
)  # fmt: skip
READINGS = {
    "equal_sparsity": "FLOPs at equal sparsity",
    "eq1": "FLOPs and parameters with sparsity by Eq. 1",
}


def nats(value: Any) -> str:
    """A signed difference of loss, to a hundred-thousandth of a nat."""
    text = f"{value:+.5f}"
    return "0" if float(text) == 0 else text.replace("-", MINUS)


COLUMNS = (
    Column("term", "mismatch", WORDS.__getitem__, left=True),
    Column("value", "loss, nats", nats),
    Column("low", "least", nats),
    Column("high", "greatest", nats),
)


def price_text(found: Price, gain: float | None, shown: Format) -> str:
    """The price as a table with the interval it has, or why there is none."""
    if found.reasons:
        why = [f"mismatch in nats: not estimable by surface {found.surface!r}: {'; '.join(found.reasons)}"]
        if gain is not None:
            left = "nothing to subtract, since what the mismatch explains is not estimable"
            why.append(f"the observed gain of {nats(gain)} nats: {left}")
        return comments("\n".join(why)) if shown == "tex" else "\n".join(why) + "\n"
    rows = [{"term": name, **vars(value)} for name, value in found.terms.items()]
    lines = [_how(found), *(_explained(found, gain) if gain is not None else [])]
    return render(COLUMNS, rows, shown, "\n".join(lines) if shown == "table" else "; ".join(lines))


def _how(found: Price) -> str:
    assert found.sparsities is not None
    first, second = (f"{float(S) * 100:.2f} %" for S in found.sparsities)
    around = " and ".join(map(repr, found.compared))
    errors = ", ".join(f"{value:g} ({name})" for name, value in found.rmse.items()) or "not stated"
    return (
        f"surface {found.surface!r} at {found.tokens:.4g} training tokens for both, F by convention 'paper' at a mean "
        f"attended context of {short_fraction(found.context)}, S {first} and {second}; the first three are shares of "
        f"the total by logarithmic means; least and greatest over {around}, with {_rounding(found)}, and without the "
        f"RMSE of the fits, in nats: {errors}; the KV cache has no price in nats"
    )


def _rounding(found: Price) -> str:
    """Whose rounding the interval holds."""
    if not found.rounded:
        return "no rounding, since none is stated"
    of = "their printed coefficients" if found.rounded == found.compared else (
        f"the printed coefficients of {' and '.join(map(repr, found.rounded))} alone"
    )  # fmt: skip
    return f"the rounding of {of}"


def _explained(found: Price, gain: float) -> list[str]:
    """What an observed gain could owe to the mismatch, by each reading of sparsity."""
    lines = []
    for name, part in found.explained.items():
        share = part.value / gain
        could = f"{share * 100:.1f} %" if share > 0 else "none"
        lines.append(
            f"of the observed gain of {nats(gain)} nats, {READINGS[name]} could explain {nats(part.value)}, {could}, "
            f"and leave {_left(part, gain)}"
        )
    return lines


def _left(part: Nats, gain: float) -> str:
    return f"{nats(gain - part.value)} ({nats(gain - part.high)} to {nats(gain - part.low)})"


def price_json(found: Price, gain: float | None) -> dict[str, Any]:
    """The price as a document part."""
    return {
        "surface": found.surface,
        "convention": "paper",
        "mean_attended_context": fraction_text(found.context),
        "tokens": found.tokens,
        "sparsity": None if found.sparsities is None else {
            name: float(S) for name, S in zip(("baseline", "candidate"), found.sparsities, strict=True)
        },
        "estimable": not found.reasons,
        "not_estimable": list(found.reasons),
        "loss_nats": {name: vars(value) for name, value in found.terms.items()} or None,
        "interval": {"surfaces": list(found.compared), "rounding_of_coefficients": list(found.rounded)},
        "rmse_nats": dict(found.rmse),
        "observed_gain_nats": gain,
        "explained": None if gain is None else {name: _share(part, gain) for name, part in found.explained.items()},
    }  # fmt: skip


def _share(part: Nats, gain: float) -> dict[str, float]:
    return {
        "could_explain_nats": part.value,
        "share": part.value / gain,
        "left_nats": gain - part.value,
        "left_nats_least": gain - part.high,
        "left_nats_greatest": gain - part.low,
    }
