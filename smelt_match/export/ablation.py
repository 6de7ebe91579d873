"""The columns of the ablation tables."""

from __future__ import annotations

from typing import Any

from smelt_match.export.columns import BUDGET, CONFIG, DEVIATION, HOW, category_columns
from smelt_match.export.table import Column
from smelt_match.units import MINUS


def scientific(value: Any) -> str:
    """A large count in two digits after the point: ``1.33e+09``."""
    return f"{float(value):.2e}"


def nats(value: Any) -> str:
    """A loss in nats or bits, to four digits after the point."""
    return f"{float(value):.4f}"


def signed(value: Any) -> str:
    """A difference in nats, with its sign."""
    return f"{float(value):+.4f}".replace("-", MINUS)


def with_half(value: Any) -> str:
    """A mean and half of its interval, such as ``1.9445 ± 0.0021``; a mean alone where there is none."""
    mean, half = value
    return nats(mean) + ("" if half is None else f" ± {half:.4f}")


def signed_with_half(value: Any) -> str:
    """A difference and half of its interval."""
    mean, half = value
    return signed(mean) + ("" if half is None else f" ± {half:.4f}")


def p_value(value: Any) -> str:
    """A p-value; small ones by their bound."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def share(value: Any) -> str:
    """A share in whole per cent, or the words that stand for it."""
    return value if isinstance(value, str) else f"{float(value) * 100:.0f} %".replace("-", MINUS)


PLAN = (
    Column("point", "point", left=True),
    Column("layout", "layout", left=True),
    Column("executed_layers", "executed"),
    *CONFIG,
    *BUDGET,
    *DEVIATION,
    Column("flops_train", "FLOPs an arm", scientific),
    Column("seeds", "seeds"),
    Column("note", "", left=True),
    *HOW,
)
RESULT = (
    Column("point", "point", left=True),
    Column("layout", "layout", left=True),
    Column("executed_layers", "executed"),
    Column("seeds", "seeds"),
    Column("loss", "val. loss", with_half),
    Column("difference", "− baseline", signed_with_half),
    Column("p", "p", p_value),
    Column("detectable", "detectable", nats),
    Column("mismatch", "mismatch", lambda value: value if isinstance(value, str) else signed(value)),
    Column("share", "share", share),
    Column("mean_over_sources", "mean of sources", with_half),
    Column("bits_per_byte", "bits/byte", with_half),
)
PRINTED = (
    Column("printed_loss", "paper", nats),
    Column("printed_difference", "paper −", signed),
)


def result_columns(categories: list[str], printed: bool) -> tuple[Column, ...]:
    """The columns of a result, with one for each category, and the paper's own where it prints any."""
    return (*RESULT, *(PRINTED if printed else ()), *category_columns(categories, with_half))


def data_columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The same for CSV: what tells one table from another first, and half an interval in a column of its own."""
    found = [Column("baseline", ""), Column("tokens", "")]
    for column in columns:
        found.append(column)
        if column.text in (with_half, signed_with_half):
            found.append(Column(f"{column.key}_half_width", ""))
    return (*found, Column("learning_rate", ""))
