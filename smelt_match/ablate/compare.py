"""The table of a sweep: what each point lost or won against its baseline, and what of it the noise leaves standing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations

from smelt_match.ablate.points import Point
from smelt_match.ablate.published import published_table
from smelt_match.ablate.result import ArmResult, Horizon
from smelt_match.ablate.statistics import LEVEL, Estimate, Paired, estimate, holm, paired
from smelt_match.ablate.variants import Kind
from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of, control_of
from smelt_match.budget.ledger import ledger
from smelt_match.budget.mismatch import Price, price
from smelt_match.budget.surface import choose_surface
from smelt_match.errors import BadInput

Results = Mapping[tuple[str, int], ArmResult]
SURFACE = "baseline"
MAX_PAIRS = 12


@dataclass(frozen=True)
class Row:
    """A point at a horizon. Losses are in nats per token unless they say otherwise; lower is better.

    Attributes:
        tokens: Training tokens at this horizon.
        seeds: The seeds that have a result.
        loss: Weighted by tokens.
        mean_over_sources: The plain mean of the sources' losses.
        bits_per_byte: In bits per byte of text; None where the bytes are not known.
        categories: Weighted by tokens within each category.
        difference: Loss less the baseline's, seed by seed; None for the baseline, or without a common seed.
        p: p of the difference, adjusted for the points of the table (Holm); None without a test.
        mismatch: What the remaining mismatch of the budgets is worth; None for the baseline.
        printed: The loss that the paper prints for this point, and its difference from the printed baseline.
    """

    point: Point
    tokens: int
    seeds: tuple[int, ...]
    loss: Estimate
    mean_over_sources: Estimate
    bits_per_byte: Estimate | None
    categories: Mapping[str, Estimate]
    difference: Paired | None
    p: float | None
    mismatch: Price | None
    printed: tuple[Decimal, Decimal] | None

    @property
    def mismatch_nats(self) -> float | None:
        """The part of the difference that the mismatch predicts, or None outside the surface's range."""
        return self.mismatch.terms["total"].value if self.mismatch is not None and self.mismatch.terms else None

    @property
    def share(self) -> float | None:
        """That part over the whole difference; None where either is missing, or nothing differs."""
        if self.difference is None or self.mismatch_nats is None or self.difference.estimate.mean == 0:
            return None
        return self.mismatch_nats / self.difference.estimate.mean


@dataclass(frozen=True)
class Table:
    """One baseline at one horizon.

    Attributes:
        source: Where the printed figures stand; empty where there are none.
        sentences: What can be said of the order, and what not.
    """

    baseline: str
    tokens: int
    rows: tuple[Row, ...]
    source: str
    sentences: tuple[str, ...]


def tables(kind: Kind, points: Sequence[Point], results: Results) -> list[Table]:
    """A table for each baseline and horizon that has a result.

    Raises:
        BadInput: Arms of one seed were trained on different tokens, so that they cannot be compared.
    """
    _check_tokens(results)
    found = []
    for name in dict.fromkeys(point.baseline.spec.name for point in points):
        own = [point for point in points if point.baseline.spec.name == name]
        lengths = [len(r.horizons) for (point, _), r in results.items() if point in {p.name for p in own}]
        found += [_table(kind, own, results, index) for index in range(min(lengths, default=0))]
    return found


def _check_tokens(results: Results) -> None:
    for seed in sorted({seed for _, seed in results}):
        digests = {result.tokens_digest: point for (point, own), result in results.items() if own == seed}
        if len(digests) > 1:
            names = " and ".join(list(digests.values())[:2])
            raise BadInput(
                f"seed {seed}: {names} were trained on different tokens (their digests differ)",
                "the corpus changed between runs; train the sweep again in another --out",
            )


def _table(kind: Kind, points: Sequence[Point], results: Results, index: int) -> Table:
    runs = {
        point.name: {seed: r.horizons[index] for (name, seed), r in results.items() if name == point.name}
        for point in points
    }
    trained = [point for point in points if runs[point.name]]
    reference = next(point for point in points if point.is_reference)
    differences = {
        point.name: _difference(runs[point.name], runs[reference.name]) for point in trained if point is not reference
    }
    tested = [name for name, found in differences.items() if found is not None and found.p is not None]
    adjusted = dict(zip(tested, holm([_p(differences[name]) for name in tested]), strict=True))
    printed = published_table(kind, reference.baseline.spec)
    tokens = next(iter(runs[trained[0].name].values())).tokens
    rows = [
        _row(
            point, runs[point.name], tokens, differences.get(point.name), adjusted.get(point.name),
            _printed(printed[0].loss, point, reference) if printed else None,
        )
        for point in trained
    ]  # fmt: skip
    sentences = tuple(_sentences(rows, runs, reference in trained))
    return Table(reference.baseline.spec.name, tokens, tuple(rows), printed[1] if printed else "", sentences)


def _row(
    point: Point,
    runs: Mapping[int, Horizon],
    tokens: int,
    difference: Paired | None,
    p: float | None,
    printed: tuple[Decimal, Decimal] | None,
) -> Row:
    at = [runs[seed] for seed in sorted(runs)]
    bits = [horizon.bits_per_byte for horizon in at]
    return Row(
        point=point,
        tokens=tokens,
        seeds=tuple(sorted(runs)),
        loss=_over(at, lambda horizon: horizon.loss),
        mean_over_sources=_over(at, lambda horizon: horizon.mean_over_sources),
        bits_per_byte=None if None in bits else estimate([value for value in bits if value is not None]),
        categories={name: estimate([horizon.by_category[name] for horizon in at]) for name in at[0].by_category},
        difference=difference,
        p=p,
        mismatch=None if point.is_reference else mismatch(point, tokens),
        printed=printed,
    )


def _over(horizons: Iterable[Horizon], value: Callable[[Horizon], float]) -> Estimate:
    return estimate([value(horizon) for horizon in horizons])


def _p(found: Paired | None) -> float:
    assert found is not None
    assert found.p is not None
    return found.p


def _difference(ours: Mapping[int, Horizon], theirs: Mapping[int, Horizon]) -> Paired | None:
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return paired([ours[seed].loss for seed in common], [theirs[seed].loss for seed in common])


def _printed(loss: Callable[[str], Decimal | None], point: Point, reference: Point) -> tuple[Decimal, Decimal] | None:
    ours, theirs = loss(point.variant.name), loss(reference.variant.name)
    return None if ours is None or theirs is None else (ours, ours - theirs)


def mismatch(point: Point, tokens: int) -> Price:
    """What the remaining mismatch of a point is worth along the paper's surface of unlooped models."""
    rule = convention("paper")  # the F of the surface is counted so
    surface, others = choose_surface(SURFACE)
    base = point.baseline.spec
    context = (surface.context or context_of(base)).document
    baseline, candidate, control = (
        ledger(spec, rule, context).budget for spec in (base, point.best.spec, control_of(base))
    )
    return price(baseline, candidate, control, surface, others, tokens, context.mean)


def _sentences(rows: Sequence[Row], runs: Mapping[str, Mapping[int, Horizon]], has_reference: bool) -> Iterator[str]:
    """What the seeds can and cannot tell."""
    if not has_reference:
        yield "the baseline has no result, so that there are no differences"
    if len(rows) < 2:
        return
    ranked = sorted(rows, key=lambda row: row.loss.mean)
    order = " < ".join(row.point.variant.name for row in ranked)
    pairs = list(combinations(ranked, 2))
    found = [_difference(runs[a.point.name], runs[b.point.name]) for a, b in pairs]
    least = min(len(row.seeds) for row in rows)
    if least < 2:
        yield (
            f"order by mean loss: {order}; with one seed no test is possible, and no order can be told from the noise "
            "between seeds: add --seeds 3"
        )
        return
    testable = [(pair, d) for pair, d in zip(pairs, found, strict=True) if d is not None and d.p is not None]
    adjusted = holm([_p(d) for _, d in testable])
    limit = 1 - LEVEL
    alike = [pair for (pair, _), p in zip(testable, adjusted, strict=True) if p >= limit]
    how = f"paired t-test over {least} seeds, 5 %, Holm over {len(testable)} pairs"
    if not alike:
        yield f"order by mean loss: {order}; every pair is told apart ({how})"
        return
    yield (
        f"order by mean loss: {order}; it is within the noise for {len(alike)} of {len(testable)} pairs ({how}): "
        + ", ".join(f"{a.point.variant.name} and {b.point.variant.name}" for a, b in alike[:MAX_PAIRS])
        + (", …" if len(alike) > MAX_PAIRS else "")
    )
    rivals = [b.point.variant.name for a, b in alike if a is ranked[0]]
    if rivals:
        yield f"{ranked[0].point.variant.name} has the lowest mean loss, and is not told apart from {', '.join(rivals)}"
