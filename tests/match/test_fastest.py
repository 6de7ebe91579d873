"""The search for the fastest step: its space is the certified set, and it finds, prunes, resumes and refuses.

The timer is a made-up one: seconds are a function of a model's sizes, so that the fastest model is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from smelt_match.errors import BadInput
from smelt_match.match.answer import PolicyAnswer, answer
from smelt_match.match.fastest import PAIRS, ROUNDS, UNPRUNED, Fastest, Ratio, find_fastest
from smelt_match.match.feasible import Feasible
from smelt_match.match.problem import Points, Question, Tolerance
from smelt_match.spec.model import ModelSpec

Ask = Callable[..., Question]
NEAR = Tolerance(Fraction(1, 100), Fraction(1, 100), Fraction(4, 100))


class Pretend:
    """A timer by formula."""

    def __init__(self, cost: Callable[[ModelSpec], float], **identity: str) -> None:
        self.cost, self.calls, self.closed = cost, [], 0
        self.identity = {"step": "made up", "device": "a pretended one", **identity}
        self.calls: list[list[int]]

    def rounds(self, specs: Sequence[ModelSpec]) -> Generator[tuple[float, ...], None, None]:
        number = 0
        self.calls.append([0])
        try:
            while True:
                number += 1
                self.calls[-1][0] = number
                slow = 1 + 0.01 * number  # a machine that slows down, which ratios do not see
                yield (slow, *(slow * self.cost(spec) for spec in specs))
        finally:
            self.closed += 1


def by_width(spec: ModelSpec) -> float:
    """Wide models with many heads are slow; experts are free."""
    return spec.hidden_size / 1000 + spec.head_dim * spec.num_attention_heads / 10_000


def solved(question: Question) -> list[PolicyAnswer]:
    return answer(question).solved


@pytest.fixture
def few(ask: Ask) -> list[PolicyAnswer]:
    """Five matched models: four uniform ones and one with split heads."""
    return solved(ask("200m_s85", "mid50x2"))


@pytest.fixture
def many(ask: Ask) -> list[PolicyAnswer]:
    """Many matched models: 163 uniform ones and 24 with split heads."""
    return solved(ask("200m_s85", "mid50x2", heads="free", tolerance=NEAR))


def search(
    found: list[PolicyAnswer], trials: int = 60, cost: Callable[[ModelSpec], float] = by_width, **options: Any
) -> Fastest:
    timer = Pretend(cost, **options.pop("identity", {}))
    return find_fastest(found, timer, trials, options.pop("seed", 0), options.pop("storage", None), **options)


def fastest_of(space: Feasible, cost: Callable[[ModelSpec], float]) -> float:
    return min(cost(space.spec(row)) for row in range(len(space)))


@pytest.mark.parametrize("name", ["few", "many"])
def test_every_model_of_the_space_is_matched(name: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(name)
    space = Feasible(found)
    for one in found:
        problem, rung = one.problem, space.rungs[one.policy]
        points = [space.point(row) for row in range(len(space)) if space.policy(row) == one.policy]
        values = problem.values(Points.of(*points))
        limits = vars(NEAR) if rung is None else {"flops": rung, "params": rung, "kv": abs(one.floor)}
        for budget, limit in limits.items():
            assert all(abs(problem.relative(budget, int(value))) <= limit for value in values[budget])
        assert one.solution.ranked[0] in points
        assert rung is None or len(points) == one.solution.within
    assert len(space) == len(set(map(tuple, space.rows.tolist())))


def test_one_sided_matches_stay_below(ask: Ask) -> None:
    space = Feasible(solved(ask("200m_s85", "mid50x2", heads="free", one_sided=True, tolerance=NEAR)))
    assert len(space) > 1
    for row in range(len(space)):
        problem = space.problems[space.policy(row)]
        values = problem.values(Points.of(space.point(row)))
        assert all(problem.relative(budget, int(values[budget][0])) <= 0 for budget in ("flops", "params", "kv"))


def test_a_suggestion_of_a_row_gives_that_row(many: list[PolicyAnswer]) -> None:
    import optuna

    space = Feasible(many)
    left = [True] * len(space)
    for row in range(len(space)):
        assert space.suggest(optuna.trial.FixedTrial(space.suggestion(row)), left) == row  # type: ignore[arg-type]


def test_whatever_is_suggested_is_a_model_that_is_left(many: list[PolicyAnswer]) -> None:
    import optuna

    space = Feasible(many)
    left = [row == 17 for row in range(len(space))]
    assert space.suggest(optuna.trial.FixedTrial(space.suggestion(3)), left) == 17  # type: ignore[arg-type]


def test_a_small_space_is_timed_whole_and_no_model_twice(few: list[PolicyAnswer]) -> None:
    found = search(few, trials=100)
    space = Feasible(few)
    assert found.trials == len(space) == 5
    assert found.spaces == {"uniform": 4, "split": 1}
    assert by_width(space.spec(space.find(found.winner.policy, found.winner.point) or 0)) == fastest_of(space, by_width)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_known_fastest_of_many_is_found_in_a_third_of_them(many: list[PolicyAnswer], seed: int, sign: int) -> None:
    def cost(spec: ModelSpec) -> float:
        return 2 + sign * by_width(spec)

    space = Feasible(many)
    found = search(many, len(space) // 3, cost, seed=seed)
    ranked = sorted(cost(space.spec(row)) for row in range(len(space)))
    row = space.find(found.winner.policy, found.winner.point)
    assert row is not None
    assert cost(space.spec(row)) <= ranked[len(space) // 50]
    assert found.pruned > 0


def test_ratios_are_to_the_baseline_and_to_the_certified_optimum_of_the_same_policy(few: list[PolicyAnswer]) -> None:
    found = search(few)
    certified = {one.policy: one for one in found.timed[1:]}
    assert list(certified) == ["uniform", "split"]
    space = Feasible(few)
    for one in found.timed:
        cost = by_width(space.spec(space.find(one.policy, one.point) or 0))
        assert one.to_baseline.value == pytest.approx(cost)
        assert one.to_certified.value == pytest.approx(cost / certified[one.policy].to_baseline.value)
    assert all(one.to_certified == Ratio(1, 1, 1) for one in certified.values())


def test_a_ratio_is_the_median_of_rounds_and_its_spread_their_middle_half() -> None:
    assert Ratio.of([1, 2, 9], [2, 2, 2]) == Ratio(1.0, 0.75, 2.75)
    assert Ratio.of([2, 4, 60], [1, 4, 30]) == Ratio(2.0, 1.5, 2.0), "a round that is slow for both is no outlier"
    assert Ratio.of([3], [2]) == Ratio(1.5, 1.5, 1.5)


def test_slow_models_are_pruned_and_certified_ones_never(many: list[PolicyAnswer]) -> None:
    certified = {one.solution.ranked[0] for one in many}

    def cost(spec: ModelSpec) -> float:
        ours = tuple(spec.config()[name] for name in ("hidden_size", "num_experts", "expert_intermediate_size"))
        return 9.0 if ours in {point[:3] for point in certified} else by_width(spec)

    timer = Pretend(cost)
    told: list[str] = []
    found = find_fastest(many, timer, 30, 0, None, told.append)
    *trials, run_off = [calls for (calls,) in timer.calls]
    assert trials[: len(many)] == [PAIRS] * len(many)
    assert trials[:UNPRUNED] == [PAIRS] * UNPRUNED
    assert found.pruned == sum(calls < PAIRS for calls in trials) > 0
    assert run_off == ROUNDS
    assert timer.closed == len(timer.calls)
    assert sum("pruned after" in line for line in told) == found.pruned
    assert len(told) == found.trials + 1


def test_a_search_is_resumed_where_it_was_killed(many: list[PolicyAnswer], tmp_path: Path) -> None:
    journal = str(tmp_path / "s.journal")
    killed_at = 7
    count = 0

    def cost(spec: ModelSpec) -> float:
        nonlocal count
        count += 1
        if count > killed_at * PAIRS + 2:
            raise KeyboardInterrupt
        return by_width(spec)

    with pytest.raises(KeyboardInterrupt):
        search(many, 20, cost, storage=journal)
    timer = Pretend(by_width)
    found = find_fastest(many, timer, 20, 0, journal)
    assert found.trials == 20
    assert 0 < len(timer.calls) - 1 <= 20 - killed_at
    again = Pretend(by_width)
    assert find_fastest(many, again, 20, 0, journal) == found
    assert not again.calls, "a finished search is read, not timed again"
    assert search(many, 25, storage=journal).trials == 25


def test_a_certified_model_whose_trial_was_killed_is_timed_in_the_next_run(
    many: list[PolicyAnswer], tmp_path: Path
) -> None:
    journal = str(tmp_path / "s.journal")

    def killed(_: ModelSpec) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(many, 20, killed, storage=journal)
    told: list[str] = []
    found = search(many, 2, storage=journal, progress=told.append)
    assert found.trials == 2
    assert [line[:7] for line in told] == ["1 of 2:", "2 of 2:", "run-off"]
    for one in many:
        H, E, *_ = one.solution.ranked[0]
        assert sum(f"{one.policy}, H {H}, E {E}," in line for line in told) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"identity": {"device": "another"}}, "device is a pretended one, this search has another"),
        ({"identity": {"tokens_per_step": "7"}}, "tokens_per_step is not stated, this search has 7"),
        ({"seed": 1}, "sampler is TPESampler seed 0, this search has TPESampler seed 1"),
    ],
)
def test_a_search_on_another_device_is_refused(
    few: list[PolicyAnswer], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    journal = tmp_path / "s.journal"
    search(few, 3, storage=str(journal))
    before = journal.read_bytes()
    with pytest.raises(BadInput, match=says):
        search(few, 3, storage=str(journal), **change)
    assert journal.read_bytes() == before


def test_a_search_of_another_space_is_refused(
    ask: Ask, few: list[PolicyAnswer], many: list[PolicyAnswer], tmp_path: Path
) -> None:
    journal = tmp_path / "s.journal"
    search(few, 3, storage=str(journal))
    before = journal.read_bytes()
    others = {"space is 5 matched models": many, "baseline is": solved(ask("200m_s95", "mid50x2"))}
    for says, other in others.items():
        with pytest.raises(BadInput, match=says):
            search(other, 3, storage=str(journal))
    assert journal.read_bytes() == before


def test_a_study_of_the_certificate_is_not_a_search_for_the_fastest(few: list[PolicyAnswer], tmp_path: Path) -> None:
    from smelt_match.match.study import run_study

    journal = str(tmp_path / "s.journal")
    uniform = few[0]
    run_study(uniform.problem, uniform.solution, 3, 0, journal)
    with pytest.raises(BadInput, match="objective is not stated, this search has step-time"):
        search(few, 3, storage=journal)
    other = str(tmp_path / "t.journal")
    search(few, 3, storage=other)
    with pytest.raises(BadInput, match="objective is step-time, this search has none"):
        run_study(uniform.problem, uniform.solution, 3, 0, other)


@pytest.mark.parametrize(
    "damage",
    [
        (rb'"point":\[\d+', b'"point":[7'), (rb'"policy":"uniform"', b'"policy":"other"'),
        (rb'"point":', b'"pint":'), (rb'"values":\[[^]]*\]', b'"values":[-1.0]'),
    ],
)  # fmt: skip
def test_a_journal_with_a_trial_that_is_none_of_this_search_is_refused(
    few: list[PolicyAnswer], tmp_path: Path, damage: tuple[bytes, bytes]
) -> None:
    journal = tmp_path / "s.journal"
    search(few, 3, storage=str(journal))
    broken = re.sub(*damage, journal.read_bytes())
    assert broken != journal.read_bytes()
    journal.write_bytes(broken)
    with pytest.raises(BadInput, match="holds no step time of this search"):
        search(few, 4, storage=str(journal))
    assert journal.read_bytes() == broken


def test_a_run_off_that_was_changed_is_timed_again(few: list[PolicyAnswer], tmp_path: Path) -> None:
    journal = tmp_path / "s.journal"
    found = search(few, storage=str(journal))
    lines = journal.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        if "run_off" in record.get("user_attr", {}):
            record["user_attr"]["run_off"]["rounds"][0][0] = "fast"
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    timer = Pretend(by_width)
    assert find_fastest(few, timer, 60, 0, str(journal)) == found
    assert [calls for (calls,) in timer.calls] == [ROUNDS]
