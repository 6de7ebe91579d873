"""Exact numbers, in and out: fractions, printed figures, percentages, and counts for people."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from smelt_match.errors import BadInput

MINUS = "\N{MINUS SIGN}"
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?(/\d+)?", re.ASCII)


def parse_fraction(text: str, what: str) -> Fraction:
    """Read ``392``, ``0.5``, ``1e-3``, ``3/4`` or ``0.5%`` exactly; raise `BadInput` naming ``what`` otherwise."""
    body = text.strip()
    percent = body.endswith("%")
    body = body.removesuffix("%").strip()
    if len(body) > 60 or not _NUMBER.fullmatch(body):
        raise BadInput(f"{what}: {text[:60]!r} is not a number", 'write it as 392, 0.5, 1e-3, 3/4 or "0.5%"')
    head, _, denominator = body.partition("/")
    if denominator and int(denominator) == 0:
        raise BadInput(f"{what}: {text!r} divides by zero")
    value = Fraction(head) / (int(denominator) if denominator else 1)
    return value / 100 if percent else value


_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
MAX_COUNT = 2**60 - 1


def parse_count(text: str, what: str) -> int:
    """Read ``4096``, ``200k``, ``2M``, ``1.5B`` or ``2e6`` as a whole number from 1 to `MAX_COUNT`."""
    body = text.strip()
    letter = body[-1:].lower() if body.isascii() and body[-1:].lower() in _SCALES else ""  # no KELVIN SIGN
    value = parse_fraction(body[: len(body) - len(letter)], what) * _SCALES[letter]
    if value > MAX_COUNT:
        raise BadInput(f"{what}: {text[:60]!r} is too large: {MAX_COUNT:,} is the most")
    if value.denominator != 1 or value < 1:
        raise BadInput(f"{what}: {text[:60]!r} is not a whole number of at least 1", "write it as 4096, 200k or 1.5B")
    return int(value)


def fraction_text(value: Fraction) -> str:
    """``"num/den"``, as JSON carries an exact rational."""
    return f"{value.numerator}/{value.denominator}"


def short_fraction(value: Fraction) -> str:
    """The shortest exact spelling: ``392``, ``2048.5`` or ``1000/3``."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest == 1 and value.denominator < 10**6:
        return format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    return fraction_text(value)


def round_half_even(value: Fraction) -> int:
    """The nearest integer, ties to even."""
    return round(value)


def percent(value: Fraction, digits: int = 2) -> str:
    """A signed percentage of an exact fraction, such as ``+2.87 %``; exact zero is ``0 %``.

    Halves round away from zero. A deviation that is not zero shows as many digits as it needs not to look like it.
    """
    if value == 0:
        return "0 %"
    while digits < 12 and abs(value) * 100 * 10**digits < Fraction(1, 2):
        digits += 1  # a deviation that is not zero must not look like it
    units = abs(value) * 100 * 10**digits
    text = f"{Decimal((2 * units.numerator + units.denominator) // (2 * units.denominator)).scaleb(-digits):f}"
    return f"{MINUS if value < 0 else '+'}{text} %"


def grouped(value: Fraction | int) -> str:
    """A count with thousands separators; an exact rational keeps its fraction (``12 + 1/3``)."""
    whole, rest = divmod(Fraction(value), 1)
    return f"{whole:,}" + (f" + {rest}" if rest else "")


def billions(value: int) -> str:
    """A parameter count in billions: three decimals below ten billion, two above, five below ten million."""
    digits = 5 if value < 10**7 else 3 if value < 10**10 else 2
    return f"{value / 1e9:.{digits}f}"


class Printed:
    """A figure as some source prints it, with the precision its digits claim.

    ``Printed("0.100e9")`` stands for every number that prints as 0.100 billion.
    """

    def __init__(self, text: str) -> None:
        try:
            self.value = Decimal(text)
        except InvalidOperation:
            raise ValueError(f"{text[:40]!r} is not a printed figure") from None
        if not self.value.is_finite() or abs(self.value.adjusted()) > 60:
            raise ValueError(f"{text[:40]!r} is not a printed figure")
        self.text = text

    def agrees(self, value: Fraction) -> bool:
        """Whether ``value`` rounds to the printed digits (half a unit of the last digit, inclusive)."""
        exponent = self.value.as_tuple().exponent
        assert isinstance(exponent, int)
        half_unit = Fraction(10) ** exponent / 2
        return abs(value - Fraction(self.value)) <= half_unit
