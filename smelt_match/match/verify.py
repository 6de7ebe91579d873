"""An independent check of a certificate.

Nothing here is shared with the solver: the formulas are written again (in `recount`), in pure Python integers that
cannot wrap, and the search runs the other way round (over H and I, solving for E, where the solver runs over H and E
and solves for I). A certificate that passes was therefore found twice, by two programs. An import contract keeps it
so.
"""

from __future__ import annotations

from typing import Any

from smelt_match.errors import BadInput
from smelt_match.match.claim import AXES, Check, Claim, as_text

FORMULA_VERSION = 1
MAKE_ONE = "make one with `smelt-match solve … --format json -o FILE`"
NOT_CHECKED = "the layout's text, sparsities, other conventions, the published row, lower ranks and the study"


def verify(document: Any, where: str) -> list[Check]:
    """Recompute every claim of a `solve` document (or of its certificate alone).

    Raises:
        BadInput: If the document is not one, or was made by another version of the formulas.
    """
    if not isinstance(document, dict):
        raise BadInput(f"{where}: not a certificate: the file holds no JSON object", MAKE_ONE)
    try:
        return _verify(document)
    except KeyError as error:
        raise BadInput(f"{where}: not a certificate: it has no {error}", MAKE_ONE) from None
    except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise BadInput(f"{where}: not a certificate: {error}", MAKE_ONE) from None


def _verify(document: Any) -> list[Check]:
    if "results" in document:
        if not document["results"]:
            raise ValueError("it makes no claim")
        return [
            Check(f"{result['baseline']['name']}: {check.name}", check.claimed, check.found)
            for result in document["results"]
            for check in _verify(result)
        ]
    proof = document.get("certificate", document)
    if proof["formula_version"] != FORMULA_VERSION:
        raise ValueError(f"formula version {proof['formula_version']}, this program knows {FORMULA_VERSION}")
    entries = {policy: entry for policy, entry in proof["policies"].items() if entry is not None}
    if not entries:
        raise ValueError("it makes no claim")
    checks = []
    for policy, entry in entries.items():
        claim = Claim(entry)
        found = [*claim.checks(), *(_agreement(document, policy, claim) if "matches" in document else [])]
        checks += [Check(f"{policy}: {check.name}", check.claimed, check.found) for check in found]
    for policy in sorted({row["policy"] for row in document.get("matches", ())} - entries.keys()):
        checks.append(Check(f"{policy}: certificate", "missing", "present"))
    return checks


def _agreement(document: Any, policy: str, claim: Claim) -> list[Check]:
    """The rest of a `solve` document says the same as its certificate."""
    entry = claim.entry
    visits = entry["layout"]["visits"]
    checks = [
        Check("baseline", str(document["baseline"]["config"]), str(claim.base["config"])),
        Check(
            "baseline's budget", _sorted(document["baseline"]["budget"]), _sorted(claim.recount.budget(claim.base_cost))
        ),
        Check("name", str(document["baseline"]["name"]), str(claim.base["name"])),
        Check("layout", str(document["layout"]["visits"]), str(visits)),
        Check("layout's depth", str(document["layout"]["num_layers"]), str(max(visits) + 1)),
        Check("layout, canonical", str(document["layout"]["canonical"]), _canonical(visits)),
        Check("convention", str(document["convention"]["name"]), str(entry["convention"]["name"])),
        Check(
            "attended tokens", str(document["convention"]["attended_tokens_billed"]), as_text(claim.recount.attended)
        ),
        Check("grid", str(document["grid"]), str(entry["grid"]["name"])),
        Check("KV floor told", str(document["floors"]["kv"][policy]), str(claim.floor_told())),
    ]
    rows = [row for row in document["matches"] if row["policy"] == policy and row["rank"] == 1]
    if entry["optimum"] is None or not rows:
        present = {True: "present", False: "none"}
        return [*checks, Check("first match", present[bool(rows)], present[entry["optimum"] is not None])]
    optimum = entry["optimum"]
    point = tuple(optimum[name] for name in AXES)
    ways = claim.ways if any(group.visits > 1 for group in claim.groups) else 1
    expected = {
        **optimum,
        "num_layers": sum(group.number for group in claim.groups),
        "experts_per_token": claim.k,
        "loop_num_attention_heads": optimum["num_attention_heads"] // ways,
        "loop_num_key_value_heads": optimum["num_key_value_heads"] // ways,
    }
    budget = claim.recount.budget(claim.recount.cost(point, claim.groups))
    deviation = {name: float(claim.off(point, name)) if target else None for name, target in claim.target.items()}
    return [
        *checks,
        Check("first match", _sorted(rows[0]["config"]), _sorted(expected)),
        Check("first match's budget", _sorted(rows[0]["budget"]), _sorted(budget)),
        Check("first match's deviations", str(rows[0]["deviation"]), str(deviation)),
    ]


def _sorted(values: Any) -> str:
    return str(sorted(values.items()))


def _canonical(visits: list[int]) -> str:
    """A visit list as layers from 1 in ascending runs."""
    runs: list[list[int]] = []
    for block in visits:
        if runs and runs[-1][1] == block - 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    return "visits " + ",".join(f"{a + 1}" if a == b else f"{a + 1}-{b + 1}" for a, b in runs)
