"""Arms that another sweep has trained: two sweeps share points, such as the baseline and the middle half twice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from smelt_match.ablate.folder import FAILURE, arm_folder, read_sweep, state
from smelt_match.ablate.result import RESULT
from smelt_match.ablate.sweep import NAMES, Arm
from smelt_match.files import read_text, write_atomic
from smelt_match.train.config import HOW, TrainConfig, read_config

ORIGIN = "trained-in"  # a link to the folder that has the checkpoints


def trained_elsewhere(arms: Iterable[Arm], others: Sequence[Path]) -> dict[str, Path]:
    """By an arm's name, the folder of an arm with a result that is the very same run, whatever its name.

    Args:
        arms: The arms to look for.
        others: Folders of sweeps.

    Raises:
        BadInput: A folder holds no sweep, or one of its runs is not understood.
    """
    done = [(_identity(read_config(place)), place) for other in others for place in _done(other)]
    found = {}
    for arm in arms:
        wanted = _identity(arm.config)
        origin = next((place for identity, place in done if identity == wanted), None)
        if origin is not None:
            found[arm.name] = origin
    return found


def take_over(folder: Path, origin: Path) -> None:
    """Give an arm's folder the result of another one, and a link to that one's checkpoints."""
    (folder / ORIGIN).unlink(missing_ok=True)
    (folder / ORIGIN).symlink_to(os.path.relpath(origin.resolve(), folder.resolve()))
    (folder / FAILURE).unlink(missing_ok=True)
    write_atomic(folder / RESULT, read_text(origin / RESULT, "result"), force=True)


def _done(folder: Path) -> Iterator[Path]:
    for name in read_sweep(folder).arms:
        place = arm_folder(folder, name)
        if state(place) == "done":
            yield place


def _identity(config: TrainConfig) -> dict[str, Any]:
    """All that decides an arm's result. Layouts are compared by what they execute."""
    spec = config.spec.model_dump(exclude={*NAMES, "layout"})
    return {**config.model_dump(exclude={*HOW, "spec"}), **spec, "visits": config.spec.visits.visits}
