"""The fastest step that was found, in words and as JSON: plainly a measurement, which no second run repeats exactly."""

from __future__ import annotations

from typing import Any

from smelt_match.match.fastest import Fastest, Ratio, Timed, words
from smelt_match.match.problem import POINT_AXES
from smelt_match.units import percent


def step_time_json(found: Fastest) -> dict[str, Any]:
    """The `step_time` key of a document."""
    return {
        "measured": True,
        "repeatable": False,
        **{name: int(text) if text.isdigit() else text for name, text in found.timer.items()},
        "matched_models": dict(found.spaces),
        "matched_within": {name: "tolerance" if rung is None else float(rung) for name, rung in found.rungs.items()},
        "trials": found.trials,
        "pruned": found.pruned,
        "sampler": found.sampler,
        "rounds": found.rounds,
        "fastest": _timed(found.winner),
        "certified": [_timed(one) for one in found.timed[1:]],
    }


def _timed(one: Timed) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "config": dict(zip(POINT_AXES, one.point, strict=True)),
        "step_ratio_to_baseline": _ratio(one.to_baseline),
        "step_ratio_to_certified": _ratio(one.to_certified),
    }


def _ratio(ratio: Ratio) -> dict[str, float]:
    return {"median": ratio.value, "quartile_low": ratio.low, "quartile_high": ratio.high}


def step_time_words(found: Fastest) -> list[str]:
    """The sentences under the answer table."""
    about, (winner, *certified) = found.timer, found.timed
    spaces = [f"{count:,} {policy} {_within(found, policy)}" for policy, count in found.spaces.items()]
    given_up = f" ({found.pruned} pruned)" if found.pruned else ""
    lines = [
        f"step time, measured on {about['device']} in {about['clock']}: {about['dtype']}, "
        f"{about['tokens_per_step']} tokens a step in rows of {about['tokens_per_row']}, torch {about['torch']}",
        f"  a step is {about['step']}",
        f"  matched models: {'; '.join(spaces)}; {found.trials} timed{given_up}, {found.sampler}",
        f"  fastest: {words(winner.policy, winner.point)}: {_shown(winner.to_baseline)} of the baseline's step, "
        f"{_shown(winner.to_certified)} of the certified {winner.policy} optimum's",
    ]
    lines += [
        f"  certified {one.policy} optimum: {_shown(one.to_baseline)} of the baseline's step" for one in certified
    ]
    if winner.to_certified.low <= 1 <= winner.to_certified.high and winner.to_certified.value != 1:
        lines.append("  that is within the spread of the rounds: the two may well be equally fast")
    lines.append(f"  medians of {found.rounds} rounds in turn; in brackets the middle half of the rounds")
    return lines


def step_time_note(found: Fastest) -> str:
    """The result in a sentence, for tables without an explanation."""
    winner = found.winner
    return (
        f"fastest: {_shown(winner.to_baseline)} of the baseline's step, measured on {found.timer['device']} in "
        f"{found.timer['dtype']} at {found.timer['tokens_per_step']} tokens"
    )


def _within(found: Fastest, policy: Any) -> str:
    rung = found.rungs[policy]
    if rung is None:
        return "within the tolerance"
    rung_words = percent(rung).lstrip("+").replace(".00 %", " %")
    return f"with KV at its certified level and within the certificate's rung of {rung_words}"


def _shown(ratio: Ratio) -> str:
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
