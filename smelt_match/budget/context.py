"""How many tokens a token attends to, exactly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from smelt_match.errors import BadInput
from smelt_match.files import read_text
from smelt_match.units import short_fraction

DEFAULT_TOKENS = 4096
MAX_TOKENS = 10**12
POSSIBLE = f"1 to {MAX_TOKENS:,} are possible"


@dataclass(frozen=True)
class Context:
    """The mean attended context of causal self-attention within documents.

    Attributes:
        full: c without any window, an exact rational.
        mean: c with the window in force; equal to ``full`` without one.
        window: Tokens a token may attend to, itself included, or None.
        origin: Where the number came from, in words.
        lengths: Document lengths with how often each occurs; empty where only the mean is known.
    """

    full: Fraction
    mean: Fraction
    window: int | None
    origin: str
    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def given(cls, mean: Fraction, origin: str) -> Context:
        """A context known only by its mean."""
        if not 1 <= mean <= MAX_TOKENS:
            raise BadInput(f"a mean attended context of {short_fraction(mean)} tokens; {POSSIBLE}")
        return cls(mean, mean, None, origin)

    @classmethod
    def documents(cls, lengths: Iterable[int], window: int | None, origin: str) -> Context:
        """Causal documents of these lengths: c = Σ ℓ(ℓ+1)/2 / Σ ℓ, or Σ Σ min(i, W) / Σ ℓ with a window."""
        if window is not None and not 1 <= window <= MAX_TOKENS:
            raise BadInput(f"a window of {window} tokens; {POSSIBLE}")
        tally = tuple(sorted(Counter(lengths).items()))
        tokens = sum(length * times for length, times in tally)
        if tokens == 0:
            raise BadInput("no document has a token")
        full, cut = (
            Fraction(sum(times * _attended(length, limit) for length, times in tally), tokens)
            for limit in (None, window)
        )
        suffix = f", window {window:,}" if window is not None else ""
        return cls(full, cut, window, origin + suffix, tally)

    def within(self, window: int) -> Context:
        """The same documents for layers that have a sliding window of their own; the narrower window counts."""
        if not self.lengths:
            raise BadInput(
                f"a sliding window of {window:,} tokens needs document lengths; {self.origin} is only their mean",
                "add --context N or --lengths FILE",
            )
        narrower = window if self.window is None else min(window, self.window)
        tokens = sum(length * times for length, times in self.lengths)
        cut = Fraction(sum(times * _attended(length, narrower) for length, times in self.lengths), tokens)
        return replace(self, mean=cut, window=narrower)

    @classmethod
    def causal(cls, tokens: int, window: int | None = None) -> Context:
        """One causal document of ``tokens`` tokens: c = (N+1)/2."""
        if not 1 <= tokens <= MAX_TOKENS:
            raise BadInput(f"a context of {tokens} tokens; {POSSIBLE}")
        return cls.documents([tokens], window, f"one causal document of {tokens:,} tokens")

    @property
    def document(self) -> Context:
        """The one causal document of 2c − 1 tokens where only the mean is known: the same c, and a length to cut.

        A mean whose 2c − 1 is no whole number stays as it is.
        """
        if self.lengths or self.sequence.denominator > 1:
            return self
        one = Context.causal(int(self.sequence))
        return replace(one, origin=f"{self.origin}; for sliding windows taken as {one.origin}, which has this mean")

    @property
    def sequence(self) -> Fraction:
        """The length s of the one causal document with this (unwindowed) mean: s = 2c − 1."""
        return 2 * self.full - 1


def _attended(length: int, window: int | None) -> int:
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def read_lengths(path: Path) -> list[int]:
    """Document lengths from a file: one a line, or JSON lines with a ``length`` field; `BadInput` lists faults."""
    lengths, faults = [], []
    for number, line in enumerate(read_text(path, "length file", limit=2**30).splitlines(), start=1):
        if not line.strip():
            continue
        value = _length(line.strip())
        if value is None:
            faults.append(f"{path}:{number}: not a document length: {line.strip()[:60]!r}")
        else:
            lengths.append(value)
    if faults:
        more = f"\n{path}: {len(faults) - 5:,} more lines like these" if len(faults) > 5 else ""
        hint = 'one length of at least 1 a line, or JSON lines with a "length" field'
        raise BadInput("\n".join(faults[:5]) + more, hint)
    return lengths


def _length(line: str) -> int | None:
    if len(line) <= 13 and line.isascii() and line.isdigit():
        value: object = int(line)
    else:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        value = record.get("length") if isinstance(record, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        return None
    return value
