"""The Optuna study walks the solver's space, checks the certificate, and survives kills and wrong files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smelt_match.errors import BadInput, SmeltMatchError
from smelt_match.match.order import order_key
from smelt_match.match.problem import Problem, Question
from smelt_match.match.solver import Solution, solve
from smelt_match.match.study import Space, run_study

Ask = Callable[..., Question]


def solved(question: Question, policy: str = "uniform") -> tuple[Problem, Solution]:
    problem = Problem(question, policy)  # type: ignore[arg-type]
    solution = solve(problem)
    assert solution is not None
    return problem, solution


@pytest.mark.parametrize("heads", ["kept", "q-width", "free", "free-kv"])
def test_no_trial_beats_the_certificate_under_any_head_rule(ask: Ask, heads: str) -> None:
    problem, solution = solved(ask("200m_s95", "mid50x2", heads=heads))
    result = run_study(problem, solution, 24, 3, None)
    assert result.trials == 24
    assert result.gap is None or result.gap >= 0 or result.best is not None


def test_a_small_space_meets_the_certified_optimum(ask: Ask) -> None:
    question = ask("200m_s95", "mid50x2", fixed={"hidden_size": 1328, "head_dim": 88})
    problem, solution = solved(question)
    result = run_study(problem, solution, 40, 0, None)
    assert result.met_at is not None
    assert result.best == solution.ranked[0]
    assert result.gap == 0


def test_a_trial_that_beats_the_certificate_is_a_bug_of_ours(ask: Ask) -> None:
    problem, solution = solved(ask("200m_s95", "mid50x2", fixed={"hidden_size": 1328, "head_dim": 88}))
    worse = (solution.ranked[0][0], solution.ranked[0][1] + 80, *solution.ranked[0][2:])
    with pytest.raises(SmeltMatchError, match="beats the certificate") as caught:
        run_study(problem, replace(solution, ranked=[worse]), 40, 0, None)
    assert caught.value.exit_code == 70


def test_the_point_of_a_suggestion_has_the_best_expert_width(ask: Ask) -> None:
    problem, _ = solved(ask("nano_s85", "mid50x2"))
    space = Space(problem)
    params = {"hidden_size": 116, "num_experts": 105, "head_dim": 22, "num_key_value_heads": 2, "gqa_ratio": 2}
    point, constraints = space.point(params)
    assert all(value <= 0 for value in constraints.values())
    H, E, _, *heads = point
    others = [order_key(problem, (H, E, int(width), *heads)) for width in space.I if 20 <= width <= 79]
    assert order_key(problem, point) == min(others)


def test_a_suggestion_off_the_floor_breaks_a_constraint(ask: Ask) -> None:
    space = Space(solved(ask("nano_s85", "mid50x2"))[0])
    params = {"hidden_size": 116, "num_experts": 105, "head_dim": 24, "num_key_value_heads": 2, "gqa_ratio": 2}
    _, constraints = space.point(params)
    assert constraints["kv_at_floor"] > 0


def test_a_stored_study_is_continued_and_gives_the_same_result(ask: Ask, tmp_path: Path) -> None:
    problem, solution = solved(ask("nano_s85", "mid50x2"))
    journal = str(tmp_path / "study.journal")
    first = run_study(problem, solution, 12, 0, journal)
    assert first.trials == 12
    assert run_study(problem, solution, 12, 0, journal) == first
    more = run_study(problem, solution, 20, 0, journal)
    assert more.trials == 20
    import optuna

    opened = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(journal))
    assert len(optuna.load_study(study_name="smelt-match", storage=opened).trials) == 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heads": "free"}, "space is"), ({"loop": "full x2"}, "layout is"), ({"name": "nano_s95"}, "baseline is"),
        ({"seed": 1}, "sampler is"), ({"one_sided": True}, "match is"), ({"grid": "bf16"}, "space is"),
    ],
)  # fmt: skip
def test_a_study_of_another_search_is_refused_with_the_difference(
    ask: Ask, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    journal = tmp_path / "study.journal"
    run_study(*solved(ask("nano_s85", "mid50x2")), 3, 0, str(journal))
    before = journal.read_bytes()
    asked = {"name": "nano_s85", "loop": "mid50x2", **change}
    seed = asked.pop("seed", 0)
    with pytest.raises(BadInput, match=says):
        run_study(*solved(ask(asked.pop("name"), asked.pop("loop"), **asked)), 3, int(str(seed)), str(journal))
    assert journal.read_bytes().startswith(before)


def test_a_formula_version_of_another_release_is_refused(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = str(tmp_path / "study.journal")
    asked = solved(ask("nano_s85", "mid50x2"))
    run_study(*asked, 3, 0, journal)
    monkeypatch.setattr("smelt_match.match.study.FORMULA_VERSION", 99)
    with pytest.raises(BadInput, match="formula_version is 1, this search has 99"):
        run_study(*asked, 3, 0, journal)


def test_a_last_line_cut_off_by_a_kill_is_dropped(ask: Ask, tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    asked = solved(ask("nano_s85", "mid50x2"))
    run_study(*asked, 4, 0, str(journal))
    with journal.open("ab") as stream:
        stream.write(b'{"op_code": 4, "work')
    assert run_study(*asked, 6, 0, str(journal)).trials == 6


@pytest.mark.parametrize(
    "content", [b"hello\n", b"\x00\xff\n", b'{"op_code": 0}\nnot json\n', b"[1]\n", b"half a line"]
)
def test_a_file_that_is_no_journal_is_left_as_it_is(ask: Ask, tmp_path: Path, content: bytes) -> None:
    journal = tmp_path / "study.journal"
    journal.write_bytes(content)
    with pytest.raises(BadInput):
        run_study(*solved(ask("nano_s85", "mid50x2")), 3, 0, str(journal))
    assert journal.read_bytes() == content
