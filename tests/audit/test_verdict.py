"""How several verdicts become one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from smelt_match.audit.verdict import Verdict, judge, together

YES, NO = Verdict("matched"), Verdict("not matched", "+9.00 %, outside 4 %")
HALF, OPEN = Verdict("partly", "why"), Verdict("not determinable", "x does not state head_dim")


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([YES, YES], "matched"), ([YES, NO], "partly"), ([NO, NO], "not matched"), ([HALF, YES], "partly"),
        ([YES, OPEN], "not determinable"), ([NO, OPEN], "not matched"), ([OPEN, OPEN], "not determinable"),
        ([YES, NO, OPEN], "partly"), ([HALF, OPEN], "partly"),
    ],
)  # fmt: skip
def test_one_verdict_over_several(verdicts: list[Verdict], outcome: str) -> None:
    found = together({f"b{index}": verdict for index, verdict in enumerate(verdicts)})
    assert found.outcome == outcome


def test_a_mixed_verdict_says_which_is_which_and_a_shared_reason_once() -> None:
    assert str(together({"flops": YES, "kv": NO})) == "partly (flops: matched; kv: not matched)"
    assert str(together({"flops": OPEN, "kv": OPEN})) == f"not determinable ({OPEN.reason})"


def test_a_deviation_is_judged_by_its_size() -> None:
    assert judge(Fraction(-4, 100), Fraction(4, 100)).is_matched
    assert str(judge(Fraction(-41, 1000), Fraction(4, 100))) == "not matched (−4.10 %, outside 4.00 %)"
