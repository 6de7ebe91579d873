"""Errors that a person reads: what, where, which value, and a hint. Each kind has its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SmeltMatchError(Exception):
    """Base of every error the program raises on purpose.

    Args:
        message: One line per fault: what, where (file, line, key), the value.
        hint: The next step for the reader, or empty.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadInput(SmeltMatchError):
    """The input cannot be understood, or asks for something impossible (exit 2)."""

    exit_code = 2


class AnswerIsNo(SmeltMatchError):
    """The question was understood and its answer is no (exit 1)."""

    exit_code = 1


class MissingExtra(SmeltMatchError):
    """An optional part is not installed (exit 3)."""

    exit_code = 3


class Stopped(SmeltMatchError):
    """The work was asked to stop by SIGTERM, is saved, and can go on (exit 143, which is 128 + SIGTERM)."""

    exit_code = 143


def close_names(name: str, known: Iterable[str]) -> str:
    """A hint that lists names close to ``name``, or all known ones when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=4, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"known names: {shown}" if names else ""
