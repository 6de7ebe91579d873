"""A run with branches: what it computes, what it leaves behind, and that stopping it changes nothing."""

from __future__ import annotations

import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from smelt_match.errors import AnswerIsNo, BadInput
from smelt_match.errors import Stopped as AskedToStop
from smelt_match.train import run as running
from smelt_match.train.batches import batch
from smelt_match.train.config import TrainConfig
from smelt_match.train.corpus.document import Shares
from smelt_match.train.engine import Engine, Step
from smelt_match.train.metrics import read_metrics
from smelt_match.train.progress import Progress
from smelt_match.train.run import is_done, train_run
from smelt_match.train.shards import Shards
from smelt_match.train.weights import WEIGHTS, read_model
from tests.model.tiny import tiny
from tests.train.corpora import corpus, texts
from tests.train.runs import assert_same, left_behind, small

LEGS = {"trunk": 11, "branch-00000004": 3, "branch-00000009": 3}


class Stopped(Exception):
    """Where a test ends a run."""


def stop_after(count: int) -> Any:
    """A report that ends the run after so many steps."""
    seen = 0

    def report(_: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            raise Stopped

    return report


@pytest.fixture(scope="module")
def whole(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an uninterrupted run leaves behind."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train_run(small(shards), folder)
    return left_behind(folder)


def test_a_run_leaves_its_logs_results_weights_and_last_checkpoints(shards: Shards, tmp_path: Path) -> None:
    config = small(shards)
    results = train_run(config, tmp_path / "run")
    assert is_done(config, tmp_path / "run")
    assert [(end.leg.name, end.tokens) for end in results] == [
        ("branch-00000004", 7 * 64), ("branch-00000009", 12 * 64), ("trunk", 11 * 64),
    ]  # fmt: skip
    kept = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("step-*"))
    assert kept == ["branch-00000009/step-00000003", "trunk/step-00000010", "trunk/step-00000011"]
    for leg, steps in LEGS.items():
        assert [line["step"] for line in read_metrics(tmp_path / "run" / leg)] == list(range(1, steps + 1))
    model = read_model(tmp_path / "run")
    assert model.spec.layout == "mid50x2"
    again = train_run(config, tmp_path / "run", stop_after(1))  # nothing is left to do
    assert again == results


@pytest.mark.parametrize("stops", [(1, 3), (6, 4), (12, 2), (3, 3, 3, 3)])
def test_a_run_that_was_stopped_ends_with_the_bytes_of_one_that_was_not(
    shards: Shards, tmp_path: Path, whole: dict[str, Any], stops: tuple[int, ...]
) -> None:
    config = small(shards)
    for count in stops:
        with pytest.raises(Stopped):
            train_run(config, tmp_path / "run", stop_after(count))
    train_run(config, tmp_path / "run")
    assert_same(left_behind(tmp_path / "run"), whole)


@pytest.mark.parametrize("calls", [(1, 2), (4, 1), (11, 5), (13, 3)])
def test_a_run_that_is_asked_to_stop_saves_the_step_and_goes_on_after_it(
    shards: Shards, tmp_path: Path, whole: dict[str, Any], calls: tuple[int, ...]
) -> None:
    config, seen = small(shards), []
    for count in calls:
        asked = iter([False] * (count - 1) + [True])
        with pytest.raises(AskedToStop, match=r"stopped after step \d+ of \d+, as SIGTERM asks; saved in ") as told:
            train_run(config, tmp_path / "run", lambda at: seen.append((at.leg, at.step)), False, lambda: next(asked))  # noqa: B023
        saved = Path(told.value.message.rpartition("saved in ")[2])
        assert (saved.parent / "latest").read_text().strip() == saved.name
    train_run(config, tmp_path / "run", lambda at: seen.append((at.leg, at.step)))
    assert len(seen) == len(set(seen)) == sum(LEGS.values())  # no step is computed twice
    assert_same(left_behind(tmp_path / "run"), whole)


def test_the_applied_rate_is_the_closed_form_at_every_step_before_and_after_a_resume(
    shards: Shards, tmp_path: Path
) -> None:
    config = small(shards)
    for count in (3, 4):
        with pytest.raises(Stopped):
            train_run(config, tmp_path / "run", stop_after(count))
    train_run(config, tmp_path / "run")
    rates = {leg: [line["learning_rate"] for line in read_metrics(tmp_path / "run" / leg)] for leg in LEGS}
    assert rates["trunk"] == pytest.approx([0.01 / 3, 0.02 / 3, *[0.01] * 9], rel=1e-12)
    cosine = [0.01 * (1 + math.cos(math.pi * part / 4)) / 2 for part in (1, 2, 3)]
    assert rates["branch-00000004"] == rates["branch-00000009"] == pytest.approx(cosine, rel=1e-12)


def test_no_token_is_seen_twice_and_all_branches_and_arms_see_the_same(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[str]] = {}

    def noting(arm: str) -> Any:
        step = Engine.step

        def noted(self: Engine, rows: Any, *args: Any, **kwargs: Any) -> Step:
            seen.setdefault(arm, []).append(rows.digest)
            seen.setdefault(f"{arm} rows", []).extend(row.tobytes().hex() for row in rows.tokens_BS)
            return step(self, rows, *args, **kwargs)

        return noted

    for arm, layout in (("baseline", "none"), ("looped", "mid50x2")):
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "step", noting(arm))
            train_run(small(shards, layout), tmp_path / arm)
    assert seen["baseline"] == seen["looped"]
    first, second = seen["looped"][4:7], seen["looped"][12:15]
    assert first == second
    assert len(set(seen["looped"])) == 14  # eleven of the trunk, three of the branch pool
    once = seen["looped rows"][: 12 * 4] + seen["looped rows"][15 * 4 :]
    assert len(set(once)) == 14 * 4


def test_the_weights_of_each_branch_are_kept(shards: Shards, tmp_path: Path) -> None:
    train_run(small(shards), tmp_path / "run")
    first, last = tmp_path / "run" / "branch-00000004", tmp_path / "run"
    assert read_model(first).spec == read_model(last).spec
    assert (first / WEIGHTS).read_bytes() != (last / WEIGHTS).read_bytes()
    assert not (last / "branch-00000009" / WEIGHTS).exists()


@pytest.mark.parametrize("split", ["trunk", "branch", "validation"])
@pytest.mark.parametrize("part", ["tokens", "offsets", "sources"])
def test_a_corpus_that_was_changed_is_not_trained_on(shards: Shards, tmp_path: Path, split: str, part: str) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(shards.folder, copy)
    path = copy / f"{split}.{part}.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    config = small(shards).model_copy(update={"corpus": str(copy)})
    with pytest.raises(BadInput, match=path.name):
        train_run(config, tmp_path / "run")


def test_a_rank_has_its_rows_of_the_global_batch(shards: Shards) -> None:
    whole = batch(shards.trunk, 3, 2, 4, 16)
    parts = [batch(shards.trunk, 3, 2, 4, 16, rank, 2) for rank in (0, 1)]
    assert [part.digest for part in parts] == [whole.rows(0, 2).digest, whole.rows(2, 4).digest]


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_good_checkpoint(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = Engine.forward, 0

    def broken(self: Engine, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        nats, balance = forward(self, *args)
        return nats * (float("nan") if calls > 12 else 1), balance

    config = small(shards, branches=())
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "forward", broken)
        with pytest.raises(AnswerIsNo, match="trunk: step 7: the loss is nan") as told:
            train_run(config, tmp_path / "run")
    assert f"the last good checkpoint is {tmp_path / 'run' / 'trunk' / 'step-00000006'}" in told.value.hint
    train_run(config, tmp_path / "run")  # nothing was lost
    assert is_done(config, tmp_path / "run")


def test_a_rate_that_is_far_too_high_ends_in_the_same_error_or_finite(shards: Shards, tmp_path: Path) -> None:
    config = small(shards, learning_rate=1e5, clip_norm=1e5)
    with pytest.raises(AnswerIsNo, match=r"is (nan|inf)") as told:
        train_run(config, tmp_path / "run")
    assert "checkpoint" in told.value.hint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 4}, "seed is 0 there, and 4 is asked for"),
        ({"learning_rate": 0.02}, "learning_rate is 0.01 there"),
        ({"spec": tiny("full x2", vocab_size=None)}, "spec.layout is 'mid50x2' there, and 'full x2' is asked for"),
        ({"spec": tiny("mid50x2", vocab_size=None, num_experts=8)}, "spec.num_experts is 7 there"),
    ],
)
def test_a_folder_of_another_run_is_refused_by_what_differs(
    shards: Shards, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(Stopped):
        train_run(small(shards), tmp_path / "run", stop_after(3))
    before = left_behind(tmp_path / "run")
    with pytest.raises(BadInput) as error:
        train_run(small(shards, **changes), tmp_path / "run")
    assert told in error.value.message
    assert_same(left_behind(tmp_path / "run"), before)


def test_how_a_run_is_executed_may_change_when_it_goes_on(shards: Shards, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train_run(small(shards), tmp_path / "run", stop_after(3))
    train_run(small(shards, save_every=5, log_every=2, recompute=True), tmp_path / "run")
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "trunk")][:4] == [1, 2, 4, 6]


def test_a_folder_that_is_no_runs_is_refused(shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"holds files, and no run\.json"):
        train_run(small(shards), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_second_process_in_the_same_folder_is_refused(shards: Shards, tmp_path: Path) -> None:
    def second(_: Progress) -> None:
        with pytest.raises(BadInput, match="another process is training there"):
            train_run(small(shards), tmp_path / "run")
        raise Stopped

    with pytest.raises(Stopped):
        train_run(small(shards), tmp_path / "run", second)


def test_a_config_reads_back_as_it_was(shards: Shards, tmp_path: Path) -> None:
    config = small(shards)
    (tmp_path / "run.json").write_text(config.to_json())
    assert running.read_config(tmp_path) == config
    assert TrainConfig.model_validate_json(config.to_json()).to_json() == config.to_json()


def test_a_bias_balances_and_is_part_of_the_state(shards: Shards, tmp_path: Path) -> None:
    config = small(shards, balance="bias", branches=(), steps=6)
    train_run(config, tmp_path / "whole")
    for count in (3, 2):
        with pytest.raises(Stopped):
            train_run(config, tmp_path / "run", stop_after(count))
    train_run(config, tmp_path / "run")
    assert_same(left_behind(tmp_path / "run"), left_behind(tmp_path / "whole"))
    assert read_model(tmp_path / "run").block(0).feed_forward.router.bias_E.any()
    assert [line["balance_loss"] for line in read_metrics(tmp_path / "run" / "trunk")] == [0.0] * 6


def test_a_corpus_with_nothing_held_out_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    bare = corpus(tmp_path / "bare", texts(150), shares=Shares(Fraction(0), Fraction(1, 4)))
    with pytest.raises(BadInput, match="has no held-out documents"):
        train_run(small(bare), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_without_a_pool_for_branches_is_refused_with_what_would_do(tmp_path: Path) -> None:
    bare = corpus(tmp_path / "bare", texts(300), shares=Shares(Fraction(1, 4), Fraction(0)))
    with pytest.raises(BadInput, match="branch: 192 tokens are asked for, and the corpus has 0") as told:
        train_run(small(bare), tmp_path / "run")
    assert told.value.hint == "train without branches, or build a larger corpus"


def test_what_a_kill_left_of_small_files_is_removed(shards: Shards, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train_run(small(shards), tmp_path / "run", stop_after(3))
    left = [tmp_path / "run" / name for name in (".run.json.abcd_123", "trunk/.latest.e678fikb")]
    for path in left:
        path.write_text("half")
    train_run(small(shards), tmp_path / "run")
    assert not any(path.exists() for path in left)
