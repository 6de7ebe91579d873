"""A sweep's state is its folders: what is missing is trained, what is done is not, and another sweep is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt_match.ablate.folder import FAILURE, SWEEP, arm_folder, failure, held, state
from smelt_match.ablate.result import RESULT
from smelt_match.ablate.run import Finished, run, status
from smelt_match.ablate.sweep import Sweep
from smelt_match.errors import AnswerIsNo, BadInput
from tests.ablate.conftest import Inline

Build = Callable[..., Sweep]


def go(sweep: Sweep, folder: Path, launcher: Inline | None = None) -> Finished:
    return run(sweep, folder, launcher or Inline(), lambda _: None)


def mood(folder: Path, arm: str, text: str) -> None:
    (folder / "arms" / f"{arm}.mood").write_text(text)


def calls(folder: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text()) for path in sorted((folder / "arms").glob("*/calls"))}


def test_every_point_is_trained_with_every_seed_and_the_same_run(sweep: Build, tmp_path: Path, inline: Inline) -> None:
    asked = sweep(seeds=2)
    finished = go(asked, tmp_path / "s", inline)
    assert len(finished.results) == 6
    assert not finished.failures
    assert inline.closed
    runs = [json.loads((arm_folder(tmp_path / "s", arm.name) / "run.json").read_text()) for arm in asked.arms()]
    shared = [{key: value for key, value in run.items() if key not in ("spec", "seed")} for run in runs]
    assert all(each == shared[0] for each in shared)
    assert sorted({run["seed"] for run in runs}) == [0, 1]


def test_running_again_trains_only_what_is_missing(sweep: Build, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    first = go(sweep(seeds=1), folder)
    lost = arm_folder(folder, "nano_s85-count-2-seed0")
    (lost / RESULT).unlink()
    again = Inline()
    assert go(sweep(seeds=1), folder, again).results == first.results
    assert again.ran == [lost.name]
    assert calls(folder)[lost.name] == 2
    assert sum(calls(folder).values()) == 4


def test_more_seeds_are_added_to_the_same_folder(sweep: Build, tmp_path: Path) -> None:
    folder, more = tmp_path / "s", Inline()
    go(sweep(seeds=1), folder)
    assert len(go(sweep(seeds=3), folder, more).results) == 9
    assert len(more.ran) == 6
    assert len(status(folder)) == 9
    assert len(go(sweep(seeds=1), folder, Inline()).results) == 3
    assert len(status(folder)) == 9


def test_a_failed_arm_takes_no_other_along_and_is_tried_again(sweep: Build, tmp_path: Path) -> None:
    class Moody(Inline):
        def run(self, folders: Any, told: Any) -> None:
            mood(folder, "nano_s85-count-1-seed0", "bad input")
            mood(folder, "nano_s85-count-3-seed1", "bug")
            super().run(folders, told)

    folder, asked = tmp_path / "s", sweep(seeds=2)
    finished = go(asked, folder, Moody())
    assert finished.failures == {
        "nano_s85-count-1-seed0": "loss is nan at step 7; lower the rate",
        "nano_s85-count-3-seed1": "ZeroDivisionError: division by zero",
    }
    assert len(finished.results) == 4
    found = {arm.name: (arm.state, arm.reason) for arm in status(folder)}
    assert found["nano_s85-count-1-seed0"] == ("failed", "loss is nan at step 7; lower the rate")
    for path in (folder / "arms").glob("*.mood"):
        path.unlink()
    again = Inline()
    assert not go(asked, folder, again).failures
    assert again.ran == ["nano_s85-count-1-seed0", "nano_s85-count-3-seed1"]
    assert not list(folder.glob(f"arms/*/{FAILURE}"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "span", "text": "0,6"}, ["kind is 'count', this sweep has 'span'", "nano_s85-span-6"]),
        ({"heads": "split", "text": "1-2"}, ["heads is 'uniform', this sweep has 'split'", "num_attention_heads"]),
        ({"text": "1-2"}, ["points.nano_s85-count-3 is a mapping, this sweep has nothing"]),
        ({"steps": 200, "forks": (200,)}, ["training.steps is 100, this sweep has 200", "training.forks is [100]"]),
        ({"learning_rate": 2e-3}, ["training.learning_rate is 0.001, this sweep has 0.002"]),
        ({"corpus_digest": "1" * 64}, ["training.corpus_digest is '000"]),
        ({"top": 2}, ["shortlist is 1, this sweep has 2"]),
        ({"lr_sweep": True}, ["lr_sweep is nothing, this sweep has true"]),
    ],
)
def test_a_folder_of_another_sweep_is_refused_with_what_differs(
    sweep: Build, tmp_path: Path, changes: dict[str, Any], told: list[str]
) -> None:
    folder, launcher = tmp_path / "s", Inline()
    go(sweep(), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(BadInput) as caught:
        go(sweep(**changes), folder, launcher)
    for text in told:
        assert text in caught.value.message
    assert "--out" in caught.value.hint
    assert not launcher.ran
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_where_and_how_it_runs_may_change(sweep: Build, tmp_path: Path) -> None:
    go(sweep(seeds=1), tmp_path / "s")
    assert len(go(sweep(seeds=1, device="cuda", corpus="moved"), tmp_path / "s").results) == 3


def test_short_runs_that_were_stopped_decide_nothing(sweep: Build, tmp_path: Path) -> None:
    class Stopping(Inline):
        def run(self, folders: Any, _: Any) -> None:
            for folder in folders:
                (folder / "begun").touch()

    with pytest.raises(AnswerIsNo, match=r"rate-x0\.5: stopped before its end; what it had trained is saved"):
        go(sweep(seeds=1, lr_sweep=True), tmp_path / "s", Stopping())
    finished = go(sweep(seeds=1), tmp_path / "t", Stopping())
    assert set(finished.failures.values()) == {"stopped before its end; what it had trained is saved"}


def test_a_folder_of_something_else_is_refused_and_left_alone(sweep: Build, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(BadInput, match="is not a sweep's folder, and is not empty"):
        go(sweep(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]
    with pytest.raises(BadInput, match="is not a sweep's folder"):
        go(sweep(), tmp_path / "letters.txt")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 2}', '{"schema_version": 1, "question": 3}'])
def test_a_damaged_sweep_file_is_an_error_for_people(sweep: Build, tmp_path: Path, text: str) -> None:
    go(sweep(seeds=1), tmp_path / "s")
    (tmp_path / "s" / SWEEP).write_text(text)
    with pytest.raises(BadInput, match=SWEEP):
        status(tmp_path / "s")


@pytest.mark.parametrize("text", ["", "nan", "{", "[]", '{"horizons": []}', '{"horizons": [{"tokens": -1}]}'])
@pytest.mark.parametrize("name", [RESULT, "run.json"])
def test_a_damaged_arm_is_named_and_takes_no_other_along(sweep: Build, tmp_path: Path, name: str, text: str) -> None:
    go(sweep(seeds=1), tmp_path / "s")
    path = arm_folder(tmp_path / "s", "nano_s85-count-2-seed0") / name
    path.write_text(text)
    finished = go(sweep(seeds=1), tmp_path / "s")
    assert sorted(finished.results) == [("nano_s85-count-1", 0), ("nano_s85-count-3", 0)]
    assert str(path) in finished.failures["nano_s85-count-2-seed0"]
    assert path.read_text() == text
    states = {arm.name: (arm.state, arm.reason) for arm in status(tmp_path / "s")}
    assert states["nano_s85-count-1-seed0"] == ("done", "")
    assert states["nano_s85-count-2-seed0"][0] == "damaged"
    assert str(path) in states["nano_s85-count-2-seed0"][1]


def test_another_process_at_the_sweep_is_told(sweep: Build, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    go(sweep(seeds=1), folder)
    (arm_folder(folder, "nano_s85-count-2-seed0") / RESULT).unlink()
    with held(folder, "sweep"), pytest.raises(BadInput, match="another process is at work on this sweep"):
        go(sweep(seeds=1), folder)


def test_states_of_an_arm(tmp_path: Path) -> None:
    arm = tmp_path / "arm"
    assert state(arm) == "missing"
    arm.mkdir()
    (arm / "run.json").touch()
    assert state(arm) == "missing"
    (arm / "trunk").mkdir()
    assert state(arm) == "stopped"
    with held(arm, "arm"):
        assert state(arm) == "running"
    (arm / FAILURE).write_text('{"message": "why", "hint": ""}')
    assert (state(arm), failure(arm)) == ("failed", "why")
    (arm / FAILURE).write_text("[")
    assert failure(arm) == "no reason was recorded"
    (arm / RESULT).touch()
    assert state(arm) == "done"


def test_the_status_of_a_folder_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no sweep"):
        status(tmp_path)
    with pytest.raises(BadInput, match="holds no sweep"):
        status(tmp_path / "nothing")


def test_a_shortlist_trains_the_match_that_short_runs_prefer(sweep: Build, tmp_path: Path) -> None:
    asked = sweep(seeds=1, text="3", top=4)
    finished = go(asked, tmp_path / "s")
    widths = {c.rank: c.spec.hidden_size for c in asked.points[1].candidates}
    widest = max(widths, key=lambda rank: (widths[rank], -rank))  # the trainer of these tests likes width
    assert widest > 1
    choice = finished.choices["nano_s85-count-3"]
    assert choice.candidate.rank == widest
    assert finished.points[1].best.rank == widest
    run = json.loads((arm_folder(tmp_path / "s", "nano_s85-count-3-seed0") / "run.json").read_text())
    assert run["spec"]["hidden_size"] == widths[widest]


def test_a_shortlist_ends_hopeless_matches_early_and_the_baseline_has_none(sweep: Build, tmp_path: Path) -> None:
    finished = go(sweep(seeds=1, text="1-2", top=4), tmp_path / "s")
    losses = finished.choices["nano_s85-count-2"].losses
    assert len(losses) == 4
    assert min(len(found) for found in losses.values()) < 3
    assert max(len(found) for found in losses.values()) == 3
    assert set(finished.choices) == {"nano_s85-count-2"}


def test_a_shortlist_is_read_and_not_run_again(sweep: Build, tmp_path: Path) -> None:
    first = go(sweep(seeds=1, text="1-2", top=3), tmp_path / "s")
    again = Inline()
    second = go(sweep(seeds=1, text="1-2", top=3), tmp_path / "s", again)
    assert again.ran == []
    assert second.choices == first.choices


def test_a_point_whose_matches_all_fail_is_an_answer(sweep: Build, tmp_path: Path) -> None:
    class Failing(Inline):
        def run(self, folders: Any, told: Any) -> None:
            for folder in folders:
                (folder.parent / f"{folder.name}.mood").write_text("bad input")
            super().run(folders, told)

    with pytest.raises(AnswerIsNo, match="none of its 2 matches could be trained"):
        go(sweep(seeds=1, text="1-2", top=2), tmp_path / "s", Failing())
