"""Contrasts over lengths and over in-context examples."""

from __future__ import annotations

import numpy as np
import pytest

from smelt_match.errors import AnswerIsNo
from smelt_match.scaling.contrasts import pairs, shape, shot_gaps


def test_shapes_compare_whatever_their_size() -> None:
    rising = np.arange(1.0, 9.0)
    found = shape("target", [rising, 100 * rising])
    assert found.shape == pytest.approx(rising / rising.mean())
    assert found.shape.mean() == pytest.approx(1)
    assert found.tilt == pytest.approx(6.5 / 2.5)
    assert (found.contrasts, found.left_out) == (2, 0)


def test_pairs_that_do_not_improve_are_left_out_and_counted() -> None:
    found = shape("experts", [np.ones(4), -np.ones(4)])
    assert (found.contrasts, found.left_out) == (1, 1)
    assert found.tilt == 1.0
    with pytest.raises(AnswerIsNo, match="none of the 1 contrasts improves"):
        shape("experts", [-np.ones(4)])


def test_families_pair_neighbours_of_the_same_kind() -> None:
    made = {
        (arch, scale, level, 0.0): np.array([10.0 - 1 * size - 0.1 * level - 0.01 * (arch == "smelt")])
        for arch in ("baseline", "smelt")
        for size, scale in enumerate(("100m", "200m", "600m"))
        for level in range(4)
    }
    found = pairs(made, "smelt", "baseline", ["100m", "200m", "600m"])
    assert {family: len(each) for family, each in found.items()} == {"target": 12, "experts": 9, "parameters": 8}
    assert np.ravel(found["target"]) == pytest.approx(0.01)
    assert np.ravel(found["experts"]) == pytest.approx(0.1)
    assert np.ravel(found["parameters"]) == pytest.approx(1.0)


def test_numbers_of_examples_that_some_tasks_lack_are_marked() -> None:
    scores = {("a", 0): (0.3, 0.2), ("b", 0): (0.5, 0.5), ("a", 16): (0.9, 0.7)}
    none, many = shot_gaps(scores)
    assert (none.gap, none.common, none.tasks) == (pytest.approx(0.05), True, 2)
    assert (many.gap, many.common, many.tasks) == (pytest.approx(0.2), False, 1)
