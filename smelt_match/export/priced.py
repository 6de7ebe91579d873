"""What a mismatch is worth in nats, as a table, words and JSON."""

from __future__ import annotations

from typing import Any

from smelt_match.budget.mismatch import TERMS, Nats, Price
from smelt_match.export.table import Column, Format, render
from smelt_match.units import MINUS

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
        why = f"mismatch in nats: not estimable by surface {found.surface!r}: {'; '.join(found.reasons)}\n"
        return f"% {why}" if shown == "tex" else why
    rows = [{"term": name, **vars(value)} for name, value in found.terms.items()]
    lines = [_how(found), *(_explained(found, gain) if gain is not None else [])]
    return render(COLUMNS, rows, shown, "\n".join(lines) if shown == "table" else "; ".join(lines))


def _how(found: Price) -> str:
    first, second = (f"{float(S) * 100:.2f} %" for S in found.sparsities)
    rounding = "the rounding of their printed coefficients" if found.rounded else "no rounding, since none is stated"
    return (
        f"surface {found.surface!r} at {found.tokens:.4g} training tokens for both, S {first} and {second}; least and "
        f"greatest over {' and '.join(map(repr, found.compared))}, with {rounding}; the KV cache has no price in nats"
    )


def _explained(found: Price, gain: float) -> list[str]:
    """What an observed gain could owe to the mismatch, by each reading of sparsity."""
    lines = [f"observed gain {nats(gain)} nats:"]
    for name, part in found.explained.items():
        share = part.value / gain
        could = f"{share * 100:.1f} % of it" if share > 0 else "none of it"
        lines.append(f"  {READINGS[name]} could explain {nats(part.value)}, {could}, and leave {_left(part, gain)}")
    return lines


def _left(part: Nats, gain: float) -> str:
    return f"{nats(gain - part.value)} ({nats(gain - part.high)} to {nats(gain - part.low)})"


def price_json(found: Price, gain: float | None) -> dict[str, Any]:
    """The price as a document part."""
    return {
        "surface": found.surface,
        "tokens": found.tokens,
        "sparsity": {name: float(S) for name, S in zip(("baseline", "candidate"), found.sparsities, strict=True)},
        "estimable": not found.reasons,
        "not_estimable": list(found.reasons),
        "loss_nats": {name: vars(value) for name, value in found.terms.items()} or None,
        "interval": {"surfaces": list(found.compared), "rounding_of_coefficients": found.rounded},
        "observed_gain_nats": gain,
        "explained": None if gain is None else {name: _share(part, gain) for name, part in found.explained.items()},
    }


def _share(part: Nats, gain: float) -> dict[str, float]:
    return {
        "could_explain_nats": part.value,
        "share": part.value / gain,
        "left_nats": gain - part.value,
        "left_nats_least": gain - part.high,
        "left_nats_greatest": gain - part.low,
    }
