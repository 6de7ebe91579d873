"""Certificates: sound ones hold, changed ones do not, and what is none is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, refused

SOLVE = ("solve", "--baseline", "nano_s85", "--loop", "mid50x2", "--format", "json", "--no-study", "--no-measure")


@pytest.fixture
def document(cli: Cli) -> dict[str, Any]:
    """A sound document."""
    found: dict[str, Any] = json.loads(cli(*SOLVE).out)
    return found


def changed(document: dict[str, Any], path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy with one value changed, by its dotted path."""
    result = copy.deepcopy(document)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = result
    for part in parents:
        place = place[part]
    place[last] = change(place[last])
    return result


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--free-kv-heads", "--top", "3"),
        ("--one-sided",),
        ("--tolerance", "4%"),
        ("--match", "flops,kv"),
        ("--keep", "q-width"),
        ("--front",),
        ("--convention", "torchtitan", "--context", "1000", "--window", "100"),
        ("--mean-context", "783/7"),
    ],
)
def test_what_solve_writes_holds(cli: Cli, args: tuple[str, ...]) -> None:
    assert cli(*SOLVE, *args, "-o", "match.json").code == 0
    ran = cli("verify", "match.json")
    assert (ran.code, ran.err) == (0, "")
    *claims, last = ran.out.splitlines()
    assert claims
    assert all(line.startswith("holds   ") for line in claims)
    assert last.startswith(f"all {len(claims)} claims hold; not checked: ")
    assert cli("verify", "match.json", "--quiet").out == last + "\n"


def test_a_certificate_alone_holds(cli: Cli, document: dict[str, Any]) -> None:
    Path("match.json").write_text(json.dumps(document["certificate"]))
    assert cli("verify", "match.json").code == 0


def test_a_family_holds_and_names_its_baselines(cli: Cli) -> None:
    assert cli("solve", "-b", "nano", "-l", "mid50x2", "--no-study", "-f", "json", "-o", "match.json").code == 0
    told = cli("verify", "match.json").out
    for name in ("nano_s0", "nano_s85", "nano_s95", "nano_s97"):
        assert f"holds   {name}: uniform: targets" in told


def more(value: int) -> int:
    return value + 2


POLICY = "certificate.policies.uniform"


@pytest.mark.parametrize(
    ("path", "change", "claim"),
    [
        (f"{POLICY}.targets.flops", more, "targets"),
        (f"{POLICY}.targets.params", more, "targets"),
        (f"{POLICY}.targets.kv", more, "targets"),
        (f"{POLICY}.targets.attention", more, "targets"),
        (f"{POLICY}.kv_level.deviation", lambda _: "1/33", "KV level"),
        (f"{POLICY}.kv_level.kv_widths", lambda _: [40], "KV level"),
        (f"{POLICY}.rung", lambda _: "1/500", "rung"),
        (f"{POLICY}.points_within_rung", more, "points within the rung"),
        (f"{POLICY}.minimax_flops_params", lambda _: "1/2000", "minimax of |flops|, |params|"),
        (f"{POLICY}.minimax_all.deviation", lambda _: "1/65", "minimax of all three"),
        (f"{POLICY}.minimax_all.points", more, "minimax of all three"),
        (f"{POLICY}.optimum.hidden_size", more, "optimum"),
        (f"{POLICY}.optimum.num_experts", more, "optimum"),
        (f"{POLICY}.optimum.expert_intermediate_size", more, "optimum"),
        (f"{POLICY}.optimum.head_dim", more, "optimum"),
        (f"{POLICY}.deviation.flops", lambda _: "0/1", "deviations"),
        (f"{POLICY}.deviation.params", lambda _: "0/1", "deviations"),
        (f"{POLICY}.deviation.kv", lambda _: "0/1", "deviations"),
        (f"{POLICY}.deviation.attention", lambda _: "0/1", "deviations"),
        (f"{POLICY}.layout.visits.0", more, "layout"),
        (f"{POLICY}.layout.groups.1.visits", more, "visits"),
        (f"{POLICY}.baseline.config.hidden_size", more, "targets"),
        (f"{POLICY}.convention.attended_tokens", lambda _: "393/1", "targets"),
        (f"{POLICY}.convention.router", lambda _: False, "targets"),
        ("baseline.config.hidden_size", more, "baseline"),
        ("baseline.budget.params_total", more, "baseline's budget"),
        ("baseline.budget.flops_train_per_token", more, "baseline's budget"),
        ("layout.visits.0", more, "layout"),
        ("matches.0.config.hidden_size", more, "first match"),
        ("matches.0.config.num_layers", more, "first match"),
        ("matches.0.budget.flops_train_per_token", more, "first match's budget"),
        ("matches.0.budget.params_total", more, "first match's budget"),
        ("matches.0.budget.kv_elements_per_token", more, "first match's budget"),
        ("matches.0.deviation.flops", lambda _: 0.0, "first match's deviations"),
        ("matches.0.deviation.kv", lambda _: 0.0, "first match's deviations"),
        ("matches.0.policy", lambda _: "split", "first match"),
    ],
)
def test_a_changed_number_is_found(
    cli: Cli, document: dict[str, Any], path: str, change: Callable[[Any], Any], claim: str
) -> None:
    Path("match.json").write_text(json.dumps(changed(document, path, change)))
    ran = cli("verify", "match.json", "--quiet")
    assert not ran.out
    refused(ran, f"error: uniform: {claim}: the file says ", ", recomputed ", "claims do not hold", code=1)


@pytest.mark.parametrize("policy", ["uniform", "split"])
def test_every_number_of_a_claim_is_checked(cli: Cli, document: dict[str, Any], policy: str) -> None:
    """All numbers of the targets, the optimum and its deviations at once are each told."""
    entry = document["certificate"]["policies"][policy]
    entry["points_within_rung"] += 1
    entry["minimax_all"]["points"] += 1
    entry["targets"]["kv"] += 1
    entry["deviation"]["kv"] = "1/7"
    Path("match.json").write_text(json.dumps(document))
    told = ("targets", "points within the rung", "minimax of all three", "deviations")
    ran = cli("verify", "match.json", "--quiet")
    refused(ran, *(f"error: {policy}: {claim}: the file says" for claim in told), "hint: 4 of", code=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hello", "match.json: not JSON: Expecting value: line 1 column 1"),
        ("{", "match.json: not JSON: "),
        ("[" * 100_000, "match.json: not JSON: "),
        ("1" * 5000, "match.json: not JSON: "),
        ("", "match.json: the certificate is empty"),
        ("\0", "match.json: binary data, not a certificate"),
        ("[]", "match.json: not a certificate"),
        ("3", "match.json: not a certificate"),
        ("null", "match.json: not a certificate"),
        ("NaN", "match.json: not a certificate"),
        ('"results"', "match.json: not a certificate"),
        ("{}", "match.json: not a certificate: it has no 'formula_version'"),
        ('{"results": []}', "match.json: not a certificate: it makes no claim"),
        ('{"results": [{}]}', "match.json: not a certificate"),
        (
            '{"formula_version": 2}',
            "match.json: not a certificate: formula version 2, this program knows 1",
        ),
        ('{"formula_version": 1, "policies": {}}', "match.json: not a certificate: it makes no claim"),
        ('{"formula_version": 1, "policies": {"uniform": null}}', "it makes no claim"),
        ('{"formula_version": 1, "policies": {"uniform": {}}}', "match.json: not a certificate: it has no 'baseline'"),
    ],
)
def test_what_is_no_certificate_is_refused(cli: Cli, text: str, told: str) -> None:
    Path("match.json").write_text(text)
    refused(cli("verify", "match.json"), told)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POLICY}.grid.axes.hidden_size.max", 10**30),
        (f"{POLICY}.grid.axes.hidden_size.max", 2**39),
        (f"{POLICY}.grid.axes.hidden_size.step", 0),
        (f"{POLICY}.grid.axes.hidden_size.min", -1),
        (f"{POLICY}.baseline.config.hidden_size", 10**300),
        (f"{POLICY}.baseline.config.hidden_size", 1.5),
        (f"{POLICY}.baseline.config.hidden_size", True),
        (f"{POLICY}.loop_head_divisor", 0),
        (f"{POLICY}.layout.groups.0.visits", 10**20),
        (f"{POLICY}.rung", "1/0"),
        (f"{POLICY}.rung", "1" * 500),
        (f"{POLICY}.rung", 1e999),
        (f"{POLICY}.convention.attended_tokens", "one"),
        (f"{POLICY}.match.0", "memory"),
        ("matches", 3),
    ],
)
def test_a_number_that_cannot_be_is_refused(cli: Cli, document: dict[str, Any], path: str, value: object) -> None:
    Path("match.json").write_text(json.dumps(changed(document, path, lambda _: value)))
    refused(cli("verify", "match.json"), "match.json: not a certificate: ", "hint: make one with `smelt-match solve")


def test_a_rung_that_holds_too_much_is_refused(
    cli: Cli, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt_match.match.claim.MAX_POINTS", 1000)
    Path("match.json").write_text(json.dumps(changed(document, f"{POLICY}.rung", lambda _: "10000/1")))
    refused(cli("verify", "match.json"), "more than 1,000 points")


def test_a_missing_file_or_a_folder_is_refused(cli: Cli) -> None:
    refused(cli("verify", "match.json"), "match.json: no such certificate")
    refused(cli("verify", "."), ".: is a folder, not a certificate")
