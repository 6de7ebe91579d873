"""A certificate is checked by a second program, and any tampered number in it fails."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from smelt_match.budget.tolerance import Tolerance
from smelt_match.errors import BadInput
from smelt_match.export.document import Matched
from smelt_match.match.answer import answer
from smelt_match.match.certificate import certificate
from smelt_match.match.problem import Question
from smelt_match.match.verify import verify

Ask = Callable[..., Question]


def document(question: Question) -> dict[str, Any]:
    """What `solve --format json` would write, read back."""
    found: dict[str, Any] = json.loads(json.dumps(Matched(answer(question), 1, None, None).as_json()))
    return found


def failures(proof: Any) -> list[str]:
    return [check.name for check in verify(proof, "it") if not check.holds]


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"heads": "free-kv"}, {"heads": "q-width"}, {"one_sided": True}, {"match": ("flops", "params")},
        {"match": ("flops", "kv")}, {"fixed": {"hidden_size": 1024}}, {"grid": "head2"},
        {"tolerance": Tolerance(Fraction(4, 100), Fraction(1, 100), Fraction(4, 100))}, {"depth": 9},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["200m_s95", "100m_s0"])
def test_a_certificate_holds_under_every_flag(ask: Ask, name: str, fields: dict[str, Any]) -> None:
    assert failures(document(ask(name, "mid50x2", **fields))) == []


def test_a_certificate_stands_alone_and_among_results(ask: Ask) -> None:
    one = document(ask("nano_s85", "mid50x2"))
    assert failures(one["certificate"]) == []
    assert failures({"schema_version": 1, "results": [one, one]}) == []


def test_the_certificate_of_an_unlooped_layout_holds(ask: Ask) -> None:
    assert failures(document(ask("200m_s95", "none"))) == []


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(item, (*path, index))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path


def _changed(proof: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    proof = copy.deepcopy(proof)
    place = proof
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return proof


CLAIMS = ("targets", "kv_level", "points_within_rung", "minimax_flops_params", "minimax_all", "optimum", "runner_up",
          "deviation", "baseline", "rung")  # fmt: skip


def test_every_tampered_claim_fails(ask: Ask) -> None:
    proof = document(ask("nano_s85", "mid50x2"))["certificate"]
    entry = proof["policies"]["uniform"]
    for claim in CLAIMS:
        for path in _numbers(entry[claim]):
            full = ("policies", "uniform", claim, *path)
            with contextlib.suppress(BadInput):  # refused outright
                assert failures(_changed(proof, full, lambda value: value + 1)), full
    for claim in ("minimax_flops_params", "rung"):
        full = ("policies", "uniform", claim)
        assert failures(_changed(proof, full, lambda text: f"{int(text.split('/')[0]) + 1}/{text.split('/')[1]}")), full


@pytest.mark.parametrize("part", ["config", "budget", "deviation"])
def test_a_tampered_match_fails_even_if_the_certificate_is_whole(ask: Ask, part: str) -> None:
    whole = document(ask("nano_s85", "mid50x2"))
    for index, row in enumerate(whole["matches"]):
        for path in _numbers(row[part]):
            assert failures(_changed(whole, ("matches", index, part, *path), lambda value: value + 1)), path


def test_leaving_the_better_half_of_the_grid_out_is_seen(ask: Ask) -> None:
    """A solver that skipped the optimum would name another; the verifier finds the one it skipped."""
    proof = certificate(answer(ask("nano_s85", "mid50x2")))
    entry = proof["policies"]["uniform"]
    entry["optimum"], entry["runner_up"] = entry["runner_up"] or entry["optimum"], None
    entry["optimum"] = {**entry["optimum"], "hidden_size": entry["optimum"]["hidden_size"] + 4}
    assert "uniform: optimum" in failures(proof)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.pop("policies"), lambda p: p.update(formula_version=99), lambda p: p.update(policies={}),
        lambda p: p.update(policies={"uniform": None}), lambda p: p["policies"]["uniform"].pop("grid"),
        lambda p: p["policies"]["uniform"]["baseline"]["config"].update(hidden_size="x"),
        lambda p: p["policies"]["uniform"]["baseline"]["config"].update(hidden_size=10**30),
        lambda p: p["policies"]["uniform"]["grid"]["axes"]["hidden_size"].update(max=2**39),
        lambda p: p["policies"]["uniform"].update(rung="1/0"), lambda p: p["policies"]["uniform"].update(rung="x"),
    ],
)  # fmt: skip
def test_what_is_no_certificate_is_refused(ask: Ask, damage: Callable[[Any], Any]) -> None:
    proof = json.loads(json.dumps(certificate(answer(ask("nano_s85", "mid50x2")))))
    damage(proof)
    with pytest.raises(BadInput):
        verify(proof, "it")


@pytest.mark.parametrize("other", [None, 3, "x", [], {}, {"results": 3}, {"certificate": []}])
def test_other_json_is_refused(other: Any) -> None:
    with pytest.raises(BadInput, match="not a certificate"):
        verify(other, "it")


HEADLINES = [
    ("floors", "kv", "uniform"), ("convention", "name"), ("convention", "attended_tokens_billed"), ("grid",),
    ("layout", "canonical"), ("layout", "num_layers"), ("baseline", "name"), ("baseline", "budget", "params_active"),
]  # fmt: skip


@pytest.mark.parametrize("path", HEADLINES, ids=".".join)
def test_a_tampered_headline_fails(ask: Ask, path: tuple[str, ...]) -> None:
    whole = document(ask("nano_s85", "mid50x2"))
    assert failures(_changed(whole, path, lambda value: 0.5 if isinstance(value, float) else f"{value}1"))


def test_a_match_without_a_certificate_fails(ask: Ask) -> None:
    whole = document(ask("nano_s85", "mid50x2"))
    whole["certificate"]["policies"]["split"] = None
    assert failures(whole) == ["split: certificate"]


def test_that_there_is_no_match_is_certified_too(ask: Ask) -> None:
    tight = Tolerance(*[Fraction(1, 10**6)] * 3)
    whole = document(ask("200m_s95", "mid50x2", tolerance=tight))
    assert whole["matches"] == []
    assert failures(whole) == []
    wide = Tolerance(*[Fraction(4, 100)] * 3)
    claims_too_little = document(ask("200m_s95", "mid50x2", tolerance=wide))
    entry = claims_too_little["certificate"]["policies"]["uniform"]
    for claim in ("kv_level", "rung", "minimax_flops_params", "optimum", "deviation", "runner_up"):
        entry[claim] = None
    assert "uniform: no point within the tolerance" in failures(claims_too_little)
