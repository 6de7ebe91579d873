"""The layout grammar: one string in, one visit list out, errors at the character.

    layout   = "none" | place | "loop" INT "-" INT "x" INT "of" INT | "visits" run {"," run} | group
    place    = ("mid" | "early") INT "x" INT        P percent of the layers, in the middle or first
             | ("full" | "each") "x" INT            all layers as one group, or each layer by itself
    group    = item {"-" item}
    item     = (INT | "[" group "]") ["x" INT]      "x" binds to the item before it
    run      = INT ["-" INT]

``A-B-CxR`` with three plain numbers is the field's prelude-core-coda and means ``A-[BxR]-C``.
Layers count from 1, inclusive. Spaces are free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from smelt_match.errors import BadInput
from smelt_match.spec.layout import MAX_LAYERS, MAX_VISITS, Layout

MAX_DEPTH = 50
MAX_TEXT = 1_000_000
_TOKEN = re.compile(r"\s*(?:(?P<int>[0-9]+)|(?P<word>none|mid|early|full|each|loop|visits|of)|(?P<sign>[-x×\[\],]))")
HINT = "layouts read like mid50x2, early50x2, full x4, each x2, 2-4-2x32, 1-[1x2]-[1x3]-1, loop 4-9 x2 of 12"


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def placed_size(percent: int, num_layers: int) -> int:
    """Layers in ``percent`` of ``num_layers``, rounded half up."""
    return (2 * percent * num_layers + 100) // 200


def parse_layout(text: str, num_layers: int | None = None) -> Layout:
    """Read a layout string.

    Args:
        text: The layout, in the grammar of this module.
        num_layers: L. ``none``, ``mid``, ``early``, ``full`` and ``each`` are placed within it; explicit layouts
            must sum to it. May be None for a layout that states its own depth.

    Raises:
        BadInput: With the text, a caret at the character, and what was expected.
    """
    if len(text) > MAX_TEXT:
        raise BadInput(f"layout: {len(text):,} characters; at most {MAX_TEXT:,} are read")
    parser = _Parser(text, num_layers)
    visits = parser.layout()
    depth = max(visits) + 1
    if num_layers is not None and depth != num_layers:
        parser.fail(f"the layout has {depth} layers, the model {num_layers}", 0)
    try:
        return Layout(depth, tuple(visits), " ".join(text.split()))
    except BadInput as error:
        raise BadInput(f"layout {text!r}: {error.message.removeprefix('layout: ')}", error.hint or HINT) from None


class _Parser:
    def __init__(self, text: str, num_layers: int | None) -> None:
        self.source, self.num_layers = text, num_layers
        self.tokens = list(self._scan())
        self.next = 0
        self.layers = 0

    def _scan(self) -> list[_Token]:
        tokens, at, end = [], 0, len(self.source.rstrip())
        while at < end:
            match = _TOKEN.match(self.source, at)
            if match is None:
                at += len(self.source[at:]) - len(self.source[at:].lstrip())
                self.fail("unexpected character", at)
            kind = str(match.lastgroup)
            body = match.group(kind).replace("×", "x")
            tokens.append(_Token(kind if kind == "int" else body, body, match.start(kind)))
            at = match.end()
        tokens.append(_Token("end", "", len(self.source)))
        return tokens

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self.tokens[self.next].at if at is None else at
        start = max(0, at - 40)
        shown = "".join(sign if sign.isprintable() else " " for sign in self.source[start : start + 80])
        raise BadInput(f"layout, character {at + 1}: {message}\n  {shown}\n  {' ' * (at - start)}^", HINT)

    def peek(self, *kinds: str) -> bool:
        return self.tokens[self.next].kind in kinds

    def take(self, kind: str, expected: str = "") -> _Token:
        token = self.tokens[self.next]
        if token.kind != kind:
            found = f"found {token.text!r}" if token.text else "the text ends here"
            self.fail(f"expected {expected or repr(kind)}, {found}")
        self.next += 1
        return token

    def number(self, expected: str, low: int, high: int) -> int:
        token = self.take("int", expected)
        if len(token.text) > 12 or not low <= int(token.text) <= high:
            self.fail(f"{expected} must be between {low:,} and {high:,}, found {token.text[:20]}", token.at)
        return int(token.text)

    def count(self) -> int:
        self.take("x", "'x' and a loop count")
        return self.number("a loop count", 1, MAX_VISITS)

    def layout(self) -> list[int]:
        first = self.tokens[0]
        if first.kind in ("none", "mid", "early", "full", "each"):
            self.next = 1
            visits = self.placed(first)
        elif first.kind == "loop":
            self.next = 1
            visits = self.loop()
        elif first.kind == "visits":
            self.next = 1
            visits = self.explicit()
        elif self.is_prelude_core_coda():
            visits = self.prelude_core_coda()
        else:
            visits = self.group(0)
        self.take("end", "the end of the layout")
        if not visits:
            self.fail("the layout has no layer", 0)
        return visits

    def placed(self, word: _Token) -> list[int]:
        if self.num_layers is None:
            self.fail(f"{word.text!r} needs the model's depth", word.at)
        total = self.num_layers
        every = list(range(total))
        if word.kind == "none":
            return every
        if word.kind in ("full", "each"):
            r = self.repeat(total)
            return every * r if word.kind == "full" else [index for index in every for _ in range(r)]
        at = self.tokens[self.next].at
        size = placed_size(self.number("a percentage of the layers", 1, 100), total)
        if size == 0:
            self.fail(f"this share of {total} layers is less than half a layer", at)
        r = self.repeat(size)
        before = (total - size) // 2 if word.kind == "mid" else 0
        return every[:before] + every[before : before + size] * r + every[before + size :]

    def repeat(self, size: int) -> int:
        at = self.tokens[self.next].at
        r = self.count()
        if size * r > MAX_VISITS:
            self.fail(f"more than {MAX_VISITS:,} visits", at)
        return r

    def loop(self) -> list[int]:
        at = self.tokens[self.next].at
        first = self.number("the first looped layer", 1, MAX_LAYERS)
        self.take("-")
        last = self.number("the last looped layer", 1, MAX_LAYERS)
        if last < first:
            self.fail(f"the loop ends at layer {last}, before it begins at {first}", at)
        r = self.repeat(last - first + 1)
        self.take("of", "'of' and the number of layers")
        total = self.number("the number of layers", 1, MAX_LAYERS)
        if last > total:
            self.fail(f"the loop ends at layer {last}, but the model has {total}", at)
        return [*range(first - 1), *list(range(first - 1, last)) * r, *range(last, total)]

    def explicit(self) -> list[int]:
        visits: list[int] = []
        while True:
            at = self.tokens[self.next].at
            first = last = self.number("a layer", 1, MAX_LAYERS)
            if self.peek("-"):
                self.next += 1
                last = self.number("a layer", 1, MAX_LAYERS)
            if last < first:
                self.fail(f"the run ends at layer {last}, before it begins at {first}", at)
            visits.extend(range(first - 1, last))
            self.bound(visits, at)
            if not self.peek(","):
                return visits
            self.next += 1

    def is_prelude_core_coda(self) -> bool:
        return [token.kind for token in self.tokens] == ["int", "-", "int", "-", "int", "x", "int", "end"]

    def prelude_core_coda(self) -> list[int]:
        prelude = self.number("the layers before the loop", 0, MAX_LAYERS)
        self.take("-")
        at = self.tokens[self.next].at
        core = self.number("the looped layers", 1, MAX_LAYERS)
        self.take("-")
        coda = self.number("the layers after the loop", 0, MAX_LAYERS)
        r = self.repeat(core)
        total = prelude + core + coda
        if total > MAX_LAYERS:
            self.fail(f"{total:,} layers; at most {MAX_LAYERS:,} are possible", at)
        every = list(range(total))
        return every[:prelude] + every[prelude : prelude + core] * r + every[prelude + core :]

    def group(self, depth: int) -> list[int]:
        visits = self.item(depth)
        while self.peek("-"):
            self.next += 1
            visits.extend(self.item(depth))
            self.bound(visits)
        return visits

    def item(self, depth: int) -> list[int]:
        at = self.tokens[self.next].at
        if self.peek("["):
            if depth >= MAX_DEPTH:
                self.fail(f"groups nest deeper than {MAX_DEPTH}")
            self.next += 1
            visits = self.group(depth + 1)
            self.take("]")
        else:
            size = self.number("a number of layers or '['", 1, MAX_LAYERS)
            visits = list(range(self.layers, self.layers + size))
            self.layers += size
        if self.peek("x"):
            visits = visits * self.repeat(len(visits))
        self.bound(visits, at)
        return visits

    def bound(self, visits: list[int], at: int | None = None) -> None:
        if len(visits) > MAX_VISITS or self.layers > MAX_LAYERS:
            self.fail(f"more than {MAX_LAYERS:,} layers or {MAX_VISITS:,} visits", at)
