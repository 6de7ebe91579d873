"""Where a gain sits: contrasts over sample lengths and over in-context examples (arXiv 2609.01343v3, Sec. 5.3).

Within a contrast the improvement of every bucket is divided by their mean, so that shapes compare and sizes do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from smelt_match.errors import AnswerIsNo, BadInput
from smelt_match.scaling.design import Array
from smelt_match.scaling.endpoints import EndPoints

Key = tuple[str, str, int, float]  # architecture, scale, sparsity level, tokens
FAMILIES = ("target", "experts", "parameters")


@dataclass(frozen=True)
class Shape:
    """The averaged shape of one family of contrasts.

    Attributes:
        family: ``target`` (target over reference), ``experts`` or ``parameters`` (within the reference).
        shape: Mean normalised improvement of each bucket, (buckets,).
        improvement: Mean improvement of each bucket in nats, (buckets,).
        tilt: Mean of the longer half over mean of the shorter half of ``shape``.
        contrasts: Pairs behind it.
        left_out: Pairs whose mean improvement is not positive, which has no shape.
    """

    family: str
    shape: Array
    improvement: Array
    tilt: float
    contrasts: int
    left_out: int


def curves(found: EndPoints, by: str, value: str) -> tuple[list[float], dict[Key, Array]]:
    """The values of each model over the buckets that a column names; every model needs every bucket.

    Args:
        found: Rows with a bucket each.
        by: The bucket column's role.
        value: The value column's role.
    """
    buckets = sorted(set(found.values[by].tolist()))
    position = {bucket: index for index, bucket in enumerate(buckets)}
    made: dict[Key, Array] = {}
    faults = []
    tokens = found.values.get("tokens", np.zeros(len(found.table)))
    scales = found.scales()
    for arch in found.architectures:
        _, cell = found.cells(arch)
        names = found.cells(arch)[0]
        for row, index in zip(found.rows(arch).tolist(), cell.tolist(), strict=True):
            key = (arch, scales[row], names[index][1], float(tokens[row]))
            curve = made.setdefault(key, np.full(len(buckets), np.nan))
            place = position[float(found.values[by][row])]
            if not np.isnan(curve[place]):
                faults.append(f"{found.table.where}:{found.table.lines[row]}: {_named(key)} has {by} "
                              f"{buckets[place]:g} twice")  # fmt: skip
            curve[place] = found.values[value][row]
    for key, curve in made.items():
        missing = [f"{bucket:g}" for bucket, one in zip(buckets, curve, strict=True) if np.isnan(one)]
        if missing:
            faults.append(f"{found.table.where}: {_named(key)} lacks {by} {', '.join(missing[:8])}")
    if faults:
        raise BadInput("\n".join(faults[:20]), f"every model needs every {by}; the shape compares buckets")
    return buckets, made


def _named(key: Key) -> str:
    arch, scale, level, tokens = key
    return f"{arch} {scale}, sparsity level {level + 1}" + (f", {tokens:g} tokens" if tokens else "")


def pairs(made: Mapping[Key, Array], target: str, reference: str, order: Sequence[str]) -> dict[str, list[Array]]:
    """Improvements (worse minus better model) of each family, one a pair.

    Args:
        made: Curves of losses.
        target, reference: The architectures.
        order: Scales, smallest first.
    """
    bigger = dict(pairwise(order))
    found: dict[str, list[Array]] = {family: [] for family in FAMILIES}
    for (arch, scale, level, tokens), curve in made.items():
        if arch != reference:
            continue
        others = {
            "target": (target, scale, level, tokens),
            "experts": (reference, scale, level + 1, tokens),
            "parameters": (reference, bigger.get(scale, ""), level, tokens),
        }
        for family, key in others.items():
            if key in made:
                found[family].append(curve - made[key])
    return found


def shape(family: str, improvements: Sequence[Array]) -> Shape:
    """Average the normalised improvements of a family."""
    each = np.array(improvements)
    means = each.mean(axis=1)
    sound = means > 0
    if not sound.any():
        raise AnswerIsNo(f"{family}: none of the {len(each)} contrasts improves on average, so that none has a shape")
    mean = (each[sound] / means[sound, None]).mean(axis=0)
    half = len(mean) // 2
    tilt = float(mean[-half:].mean() / mean[:half].mean()) if half else 1.0
    return Shape(family, mean, each.mean(axis=0), tilt, int(sound.sum()), int((~sound).sum()))


@dataclass(frozen=True)
class Shots:
    """The gap between two architectures at one number of in-context examples.

    Attributes:
        shots: k.
        tasks: Tasks that have this k.
        target, reference: Mean score over tasks and pairs.
        common: Whether all tasks have this k, so that it compares with the other such rows.
    """

    shots: int
    tasks: int
    target: float
    reference: float
    common: bool

    @property
    def gap(self) -> float:
        """Target minus reference."""
        return self.target - self.reference


def shot_gaps(scores: Mapping[tuple[str, int], tuple[float, float]]) -> list[Shots]:
    """Mean scores by number of examples, from (target, reference) scores by (task, k), averaged over pairs.

    Values of k that every task has make the sweep; larger k that only some tasks have are means over those.
    """
    tasks = sorted({task for task, _ in scores})
    found = []
    for k in sorted({k for _, k in scores}):
        having = [task for task in tasks if (task, k) in scores]
        means = np.mean([scores[task, k] for task in having], axis=0)
        found.append(Shots(k, len(having), float(means[0]), float(means[1]), len(having) == len(tasks)))
    return found
