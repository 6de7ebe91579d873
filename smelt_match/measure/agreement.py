"""Counted against measured, row by row: the difference is 0, or a row is named.

Torch is imported once something is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smelt_match.budget.active import active_counts
from smelt_match.budget.components import FAMILIES, KEYS_AND_VALUES, QUERIES
from smelt_match.budget.context import Context
from smelt_match.budget.conventions import CONVENTIONS
from smelt_match.budget.ledger import Ledger, ledger
from smelt_match.errors import BadInput, MissingExtra
from smelt_match.spec.model import ModelSpec
from smelt_match.units import short_fraction

if TYPE_CHECKING:
    from smelt_match.measure.measured import Measured

DOCUMENT = 783
PROJECTIONS = (QUERIES.name, KEYS_AND_VALUES.name)  # a ledger tells them apart where visits share the latter
LONGEST = 2**17  # tokens of a run
MOST_DOCUMENTS = 64
Quantity = Literal["params_stored", "flops_forward", "flops_train", "kv_elements_per_token"]


@dataclass(frozen=True)
class Check:
    """One number, counted and measured.

    Attributes:
        component: The ledger's component, or ``total``.
        method: What measured it.
        counted: By the ledger; FLOPs are those of all tokens of the run.
    """

    component: str
    quantity: Quantity
    method: str
    counted: Fraction
    measured: int

    @property
    def difference(self) -> Fraction:
        """Measured less counted."""
        return self.measured - self.counted


@dataclass(frozen=True)
class Agreement:
    """All checks of one model.

    Attributes:
        name: The model.
        documents: Lengths of the causal documents of the run; empty where nothing was run.
        convention: What was billed.
        reason: Why nothing could be measured, or what was not; empty otherwise.
        missing: The library without which nothing was run, where that is the reason.
    """

    name: str
    documents: tuple[int, ...]
    convention: str
    checks: tuple[Check, ...] = ()
    reason: str = ""
    missing: MissingExtra | None = None

    @property
    def different(self) -> list[Check]:
        """Checks that fail."""
        return [check for check in self.checks if check.difference]

    @property
    def difference(self) -> Fraction:
        """The largest of them, 0 where everything agrees."""
        return max((abs(check.difference) for check in self.checks), default=Fraction(0))

    @property
    def words(self) -> str:
        """The result in a line."""
        if not self.checks:
            return f"not measured: {self.reason}"
        if self.different:
            return "measured: differs in " + "; ".join(map(fault, self.different))
        what = "built parameters" + (" and executed FLOPs" if self.documents else "")
        tail = f"; {self.reason}" if self.reason else ""
        are = "equal the counts" if self.documents else "equal the count"
        part = "" if self.documents else " in part"
        return f"measured{part}: {what} {are} (difference 0){tail}"

    def as_json(self) -> dict[str, Any]:
        """The result as JSON."""
        if not self.checks:
            return {"difference": None, "reason": self.reason}
        return {
            "difference": _number(self.difference),
            "documents": list(self.documents),
            "mean_attended_context": short_fraction(context(self.documents).mean) if self.documents else None,
            "convention": self.convention,
            "reason": self.reason,
            "checks": [
                {
                    "component": check.component, "quantity": check.quantity, "method": check.method,
                    "counted": _number(check.counted), "measured": check.measured,
                }
                for check in self.checks
            ],
        }  # fmt: skip


def _number(value: Fraction) -> int | str:
    return int(value) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def fault(check: Check) -> str:
    """A failed check in words."""
    return (
        f"{check.component}, {check.quantity}: counted {_shown(check.counted)}, measured {check.measured:,} "
        f"({check.method})"
    )


def _shown(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else short_fraction(value)


def context(documents: tuple[int, ...]) -> Context:
    """The context of a run."""
    return Context.documents(documents, None, "measured")


def documents_of(wanted: Context) -> tuple[tuple[int, ...], str]:
    """The documents to run for a context, and a note where they have another mean.

    A context that is known by its mean c alone is one causal document of 2c − 1 tokens, where that is a whole number.
    """
    if wanted.lengths:
        number = sum(times for _, times in wanted.lengths)
        total = sum(length * times for length, times in wanted.lengths)
        if number <= MOST_DOCUMENTS and total <= LONGEST:
            return tuple(length for length, times in wanted.lengths for _ in range(times)), ""
    elif wanted.sequence.denominator == 1 and wanted.sequence <= LONGEST:
        return (int(wanted.sequence),), ""
    return (DOCUMENT,), f"on {DOCUMENT} tokens, c = {(DOCUMENT + 1) // 2}, instead of {wanted.origin}"


def compare(book: Ledger, found: Measured, tied: bool) -> tuple[Check, ...]:
    """Every number of a run against a ledger that was counted for the same documents."""
    rows = _by_component(book)
    built = dict(found.params)
    if tied and book.convention.head and not book.convention.input_embedding:
        built["output head"] = built["input embedding"]  # one matrix, which the convention bills as the head
    if not book.convention.input_embedding:
        built.pop("input embedding", None)
    if not book.convention.head:
        built.pop("output head", None)
    # A third of the cost of training is the forward pass: a spec that leaves out backward visits cannot be built.
    forward = {name: flops * found.tokens / 3 for name, (_, flops) in rows.items()}
    checks = _both("params_stored", "built", {name: Fraction(stored) for name, (stored, _) in rows.items()}, built)
    checks += _both("flops_forward", "FlopCounterMode", forward, found.executed)
    if found.traced is not None:
        checks += _both("flops_forward", "fvcore", forward, found.traced)
    counted = book.budget
    tokens_bytes = found.kv_tokens * found.kv_element_bytes
    checks += [
        Check("total", "flops_train", "FlopCounterMode", counted.flops * found.tokens, found.train),
        Check("total", "kv_elements_per_token", "filled cache", Fraction(counted.kv), found.kv_bytes // tokens_bytes),
    ]
    return tuple(checks)


def _by_component(book: Ledger) -> dict[str, tuple[int, Fraction]]:
    """Stored parameters and training FLOPs per token of each component, all its rows together."""
    found: dict[str, tuple[int, Fraction]] = {}
    for row in book.rows:
        name = row.component.partition(",")[0]
        name = FAMILIES[name] if name in PROJECTIONS else name
        stored, flops = found.get(name, (0, Fraction(0)))
        found[name] = (stored + int(row.stored), flops + book.flops(row))
    return found


def _both(quantity: Quantity, method: str, counted: Mapping[str, Fraction], measured: Mapping[str, int]) -> list[Check]:
    """A check for each component that either side knows, and their totals."""
    names = [name for name in counted if counted[name] or measured.get(name)]
    names += [name for name in measured if name not in counted]
    checks = [Check(name, quantity, method, counted.get(name, Fraction(0)), measured.get(name, 0)) for name in names]
    total = Check("total", quantity, method, sum(counted.values(), Fraction(0)), sum(measured.values()))
    return [*checks, total]


def agreement(spec: ModelSpec, wanted: Context, head: bool = False, trace: bool = True) -> Agreement:
    """Build and run a spec on the meta device, and compare it with its ledger under the paper's convention.

    Args:
        spec: The model.
        wanted: The context it was counted at.
        head: Whether the output head is counted and run.
        trace: Whether the forward pass is traced by fvcore, too.

    Raises:
        BadInput: The model cannot be built or measured.
        MissingExtra: torch or fvcore is not installed.
    """
    documents, note = documents_of(wanted)
    try:
        from smelt_match.measure.measured import measure
    except ImportError as error:
        raise missing(error, "smelt-match") from error
    try:
        found = measure(spec, documents, head, trace=trace)
    except ImportError as error:
        raise missing(error, "smelt-match") from error
    convention = CONVENTIONS["paper"]
    convention = convention.with_head() if head else convention
    book = ledger(spec, convention, context(documents))
    checks = compare(book, found, spec.tie_word_embeddings)
    return Agreement(spec.name, documents, convention.name, checks, note)


def missing(error: ImportError, package: str) -> MissingExtra:
    """A package that measuring needs."""
    return MissingExtra(f"measuring: {error.name or 'torch'} is not installed", f"pip install '{package}'")


def attempt(spec: ModelSpec, wanted: Context, head: bool = False, trace: bool = True) -> Agreement:
    """`agreement`, or the reason why there is none."""
    try:
        return agreement(spec, wanted, head, trace)
    except (BadInput, MissingExtra) as error:
        first = error.message.splitlines()[0].removeprefix(f"{spec.name}: ")
        library = error if isinstance(error, MissingExtra) else None
        return Agreement(spec.name, (), "paper", reason=first, missing=library)


def imported_agreement(spec: ModelSpec, path: Path, wanted: Context, head: bool = False) -> Agreement:
    """An imported config against transformers' own model of it, and against ours where it has every part.

    Raises:
        BadInput: Neither can be built.
        MissingExtra: torch or transformers is not installed, and our model cannot be built.
    """
    from smelt_match.measure.transformers import built_parameters

    ours = attempt(spec, wanted, head)
    try:
        counted = Fraction(active_counts(spec).total or 0)
        check = Check("total", "params_stored", "transformers", counted, built_parameters(path))
    except (BadInput, MissingExtra) as error:
        if not ours.checks:
            raise type(error)(f"{error.message}; and ours cannot be built: {ours.reason}", error.hint) from error
        return replace(ours, reason="; ".join(filter(None, (ours.reason, error.message))))
    if not ours.checks:
        reason = f"nothing was run: {ours.reason}"
        return Agreement(spec.name, (), "all parameters", (check,), reason, ours.missing)
    return replace(ours, checks=(*ours.checks, check))
