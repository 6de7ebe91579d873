"""Eq. 2: its values, its file, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt_match.budget.surface import read_surfaces, shipped_surfaces
from smelt_match.errors import BadInput


def test_surface_of_the_paper_predicts_the_losses_it_prints() -> None:
    """200m at S = 85 and 95 % after 215B tokens, within three times the RMSE that the paper states for its fits."""
    surfaces = shipped_surfaces()
    for name, flops, sparsity, printed in (
        ("baseline", 1.316e9, 0.843, 1.9445),
        ("smelt", 1.344e9, 0.846, 1.9257),
        ("baseline", 1.329e9, 0.946, 1.8735),
        ("smelt", 1.367e9, 0.947, 1.8517),
    ):
        surface = surfaces[name]
        assert surface.rmse is not None
        assert surface.loss(flops, sparsity, 2.155e11) == pytest.approx(printed, abs=3 * surface.rmse)


def test_every_fault_of_a_surface_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "surface.yaml"
    file.write_text(
        "surfaces:\n  - {name: mine, E: -1, A: .inf, K: 2.0, a: 0.3, b: 0.1, c: nought}\n"
        "  - {name: yours, E: 1.0, A: 1.0, K: 2.0, a: 0.3, b: 0.1, c: 0.5, tokens: [2.0, 1.0]}\n"
    )
    with pytest.raises(BadInput) as caught:
        read_surfaces(file)
    for part in (":2: surfaces.0.E", ":2: surfaces.0.A", ":2: surfaces.0.c", "the least value comes first"):
        assert part in caught.value.message


def test_two_surfaces_of_one_name_are_refused(tmp_path: Path) -> None:
    one = "  - {name: mine, E: 1.0, A: 1.0, K: 2.0, a: 0.3, b: 0.1, c: 0.5}\n"
    file = tmp_path / "surface.yaml"
    file.write_text("surfaces:\n" + one + one)
    with pytest.raises(BadInput, match=r"'mine' names two surfaces"):
        read_surfaces(file)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("a: 1000", ":2: surfaces.0.a: mine: a is 1000, from 0.001 to 10 is plausible"),
        ("b: -11", "b is -11, from -10 to 10 is plausible"),
        ("c: 1e9", "c is 1e+09, from 0.001 to 10 is plausible"),
        ("E: 1e9", "E is 1e+09, from 0 to 1000 is plausible"),
        ("A: 1.0e+308", "A is 1e+308, from 1e-100 to 1e+100 is plausible"),
        ("K: 1.0e+308", "K is 1e+308, from 1e-100 to 1e+100 is plausible"),
        ("half_units: {A: 1.0e+9}", "half_units: A: 1e+09 is not less than the coefficient, 1000"),
        ("half_units: {b: 0.1}", "half_units: b: 0.1 is not less than the coefficient"),
        ("tokens: [-5.0, 1.0]", "tokens.0: should be greater than 0"),
        ("tokens: [1.0, .inf]", "tokens.1: should be a finite number"),
        ("sparsity: [0.1, 1.0]", "sparsity.1: should be less than 1"),
        ("mean_attended_context: 0", "mean_attended_context: a causal token attends to at least itself"),
    ],
)
def test_coefficients_beyond_what_a_loss_can_have_are_refused(tmp_path: Path, changes: str, told: str) -> None:
    file = tmp_path / "surface.yaml"
    fields = {"name": "mine", "E": "1.0", "A": "1000.0", "K": "2.0", "a": "0.3", "b": "-0.1", "c": "0.5"}
    name, _, value = changes.partition(": ")
    file.write_text("surfaces:\n  - {" + ", ".join(f"{k}: {v}" for k, v in (fields | {name: value}).items()) + "}\n")
    with pytest.raises(BadInput) as caught:
        read_surfaces(file)
    assert told in caught.value.message


def test_an_unknown_key_of_a_surface_has_a_close_one_as_hint(tmp_path: Path) -> None:
    file = tmp_path / "surface.yaml"
    file.write_text("surfaces:\n  - {name: mine, E: 1.0, A: 1.0, K: 2.0, a: 0.3, b: 0.1, c: 0.5, tokns: [1.0, 2.0]}\n")
    with pytest.raises(BadInput) as caught:
        read_surfaces(file)
    assert caught.value.hint == "did you mean tokens?"


def test_the_surfaces_of_the_paper_say_where_their_flops_were_counted() -> None:
    assert {surface.mean_context for surface in shipped_surfaces().values()} == {392}
