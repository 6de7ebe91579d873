"""The worker itself, as a process that trains a tiny model: it is stopped, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from smelt_match.ablate import launch, work
from smelt_match.ablate.folder import FAILURE, failure, state, write_run
from smelt_match.ablate.result import RESULT, ArmResult
from smelt_match.ablate.work import command
from smelt_match.errors import AnswerIsNo, BadInput
from smelt_match.spec.model import ModelSpec
from smelt_match.train.config import TrainConfig, plan_run
from smelt_match.train.stop import Asked
from tests.train.corpora import corpus, texts

TINY = ModelSpec(
    name="tiny", hidden_size=16, num_layers=2, num_experts=4, experts_per_token=1, expert_intermediate_size=8,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8,
)  # fmt: skip


def tiny_run(place: Path) -> TrainConfig:
    """160 steps of 32 tokens, with a branch at their end."""
    shards = corpus(place, [*texts(150, "a", "Code"), *texts(150, "b", "Web")])
    return plan_run(
        TINY, shards, 5120, (160,), context=16, rows=2, branch_tokens=64, validation_tokens=64, device="cpu"
    )


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


def test_a_signal_that_comes_again_says_nothing_new_to_a_worker_whose_parent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler may send SIGTERM to all processes, and then it comes from the parent, too."""
    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    monkeypatch.setattr(work, "end_with_parent", lambda: None)

    def run(_folder: Path, _train: object, asked_to_stop: Asked) -> int:
        assert not asked_to_stop()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert asked_to_stop()
        return 143

    monkeypatch.setattr(work, "run", run)
    try:
        assert work.main([str(tmp_path), "--tied"]) == 143
        assert ended == []
        assert work.main([str(tmp_path)]) == 143
        assert ended == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_saves_the_step_of_an_arm_and_starting_it_again_goes_on_to_the_same_result(tmp_path: Path) -> None:
    config = tiny_run(tmp_path / "corpus")
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for folder in (stopped, whole):
        write_run(folder, config)
    with start(stopped) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert "trunk 1/160" in worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 143
        assert "as SIGTERM asks; saved in " in worker.stderr.read()
    assert not (stopped / FAILURE).exists()
    assert state(stopped) == "stopped"
    reached = int((stopped / "trunk" / "latest").read_text().strip().removeprefix("step-"))
    assert 1 <= reached < 160
    for folder, first in ((stopped, reached + 1), (whole, 1)):
        with start(folder) as worker:
            assert worker.wait(timeout=120) == 0
            assert worker.stdout is not None
            assert f"trunk {first}/160" in worker.stdout.read()
    assert (stopped / RESULT).read_bytes() == (whole / RESULT).read_bytes()


def test_what_the_trainer_advises_is_kept_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "arm", tiny_run(tmp_path / "corpus"))

    def train(*_: object) -> ArmResult:
        raise AnswerIsNo("trunk: step 4: the loss is nan", "the last good checkpoint is step-3")

    assert not work.work(tmp_path / "arm", train)
    whole = "trunk: step 4: the loss is nan; the last good checkpoint is step-3"
    assert failure(tmp_path / "arm") == whole
    assert capsys.readouterr().err == f"error: {whole}\n"


def test_a_failure_that_cannot_be_recorded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise BadInput("failure.json: cannot write there: No space left on device")

    monkeypatch.setattr(launch, "record_failure", full)
    told: list[str] = []
    launch.note_end(tmp_path / "arm", -9, told.append)
    assert "killed by signal 9" in told[0]
    assert told[0].endswith("No space left on device")
