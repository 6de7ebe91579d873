"""The local launcher: arms side by side in processes of their own, and none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt_match.ablate import launch
from smelt_match.ablate.folder import FAILURE, failure, state, write_run
from smelt_match.ablate.launch import Local, Slot, local_slots
from smelt_match.ablate.result import read_result
from smelt_match.ablate.run import run
from smelt_match.ablate.sweep import Sweep
from tests.ablate.conftest import run_of
from tests.ablate.trainers import loss_of, worker

SLOTS = (Slot("first"), Slot("second"))
DEADLINE = 60.0


@pytest.fixture
def arms(tmp_path: Path) -> list[Path]:
    """The folders of three arms."""
    places = [tmp_path / f"arm{seed}" for seed in range(3)]
    for seed, place in enumerate(places):
        write_run(place, run_of(seed=seed))
    return places


def mood(place: Path, text: str) -> None:
    (place.parent / f"{place.name}.mood").write_text(text)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_arms_run_in_processes_of_their_own_and_one_that_dies_takes_no_other_along(arms: list[Path]) -> None:
    mood(arms[0], "killed")
    mood(arms[1], "bad input")
    told: list[str] = []
    Local(SLOTS, worker=worker).run(arms, told.append)
    assert [state(place) for place in arms] == ["failed", "failed", "done"]
    assert failure(arms[0]).startswith(
        "the worker was killed by signal 9 without a result; signal 9 is often the system"
    )
    assert failure(arms[1]) == "loss is nan at step 7; lower the rate"
    result = read_result(arms[2])
    assert result is not None
    assert result.horizons[0].by_category["Code"] == pytest.approx(loss_of(run_of(seed=2), 100))
    assert "arm1: failed: loss is nan at step 7; lower the rate" in told
    assert "arm2: done" in told


def test_closing_has_every_worker_save_kills_those_that_take_too_long_and_starts_no_other(
    arms: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "SECONDS_TO_SAVE", 2.0)
    for place, text in zip(arms, ("hangs", "until asked", "hangs"), strict=True):
        mood(place, text)
    launcher = Local(SLOTS, worker=worker)
    caught: list[BaseException] = []
    told: list[str] = []

    def go() -> None:
        try:
            launcher.run(arms, told.append)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    until(lambda: sum((place / "begun").exists() for place in arms) == 2)
    launcher.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not caught
    assert [state(place) for place in arms] == ["stopped", "stopped", "missing"]
    assert not any((place / FAILURE).exists() for place in arms)
    assert told[-3].startswith("stopping the arms at work (2): each saves the step that runs; this waits for up to 2 s")
    assert told[-2:] == [
        "arm1: stopped before its end; what it had trained is saved",
        "arm0: was killed; it goes on from what it saved last",
    ]


def test_a_second_signal_ends_workers_at_once(arms: list[Path]) -> None:
    text = (
        "import signal, sys; from pathlib import Path\n"
        "from smelt_match.ablate.launch import Local, Slot\n"
        "from smelt_match.cli import _end\n"
        "from tests.ablate.trainers import worker\n"
        "signal.signal(signal.SIGTERM, _end)\n"
        "Local([Slot('one')], worker=worker).run([Path(sys.argv[1])], lambda line: print(line, flush=True))\n"
    )
    mood(arms[0], "hangs")
    asked = [sys.executable, "-c", text, str(arms[0])]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as parent:
        until(lambda: (arms[0] / "begun").exists())
        assert parent.stdout is not None
        parent.send_signal(signal.SIGTERM)
        assert parent.stdout.readline().startswith("arm0: started")
        assert parent.stdout.readline().startswith("stopping the arms at work (1)")
        begun = time.monotonic()
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(DEADLINE) == 143
    assert time.monotonic() - begun < launch.SECONDS_TO_SAVE / 2
    assert state(arms[0]) == "stopped"
    assert not (arms[0] / FAILURE).exists()


def test_workers_end_when_their_parent_is_killed(arms: list[Path]) -> None:
    """The pipe on their standard input ends with it, whatever way it went."""
    text = (
        "import sys; from pathlib import Path\n"
        "from smelt_match.ablate.launch import Local, Slot\n"
        "from tests.ablate.trainers import tied\n"
        "Local([Slot('one')], worker=tied).run([Path(sys.argv[1])], print)\n"
    )
    mood(arms[0], "hangs")
    parent = subprocess.Popen([sys.executable, "-c", text, str(arms[0])], stdout=subprocess.DEVNULL)
    try:
        until(lambda: (arms[0] / "begun").exists())
        assert state(arms[0]) == "running"
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until(lambda: state(arms[0]) == "stopped")


def test_a_stopped_arm_goes_on(arms: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_TO_SAVE", 0.1)
    mood(arms[0], "once")
    launcher = Local(SLOTS, worker=worker)
    thread = threading.Thread(target=launcher.run, args=([arms[0]], lambda _: None))
    thread.start()
    until(lambda: (arms[0] / "begun").exists())
    launcher.close()
    thread.join(DEADLINE)
    assert state(arms[0]) == "stopped"
    Local(SLOTS, worker=worker).run([arms[0]], lambda _: None)
    assert state(arms[0]) == "done"


def test_an_arm_that_was_asked_to_stop_has_not_failed_and_goes_on(arms: list[Path]) -> None:
    mood(arms[0], "until asked")
    told: list[str] = []
    launcher = Local(SLOTS, worker=worker)
    thread = threading.Thread(target=launcher.run, args=([arms[0]], told.append))
    thread.start()
    until(lambda: (arms[0] / "begun").exists())
    (child,) = launcher._children
    child.send_signal(signal.SIGTERM)
    thread.join(DEADLINE)
    assert state(arms[0]) == "stopped"
    assert not (arms[0] / FAILURE).exists()
    assert told[-1] == "arm0: stopped before its end; what it had trained is saved"
    Local(SLOTS, worker=worker).run([arms[0]], told.append)
    assert state(arms[0]) == "done"


def test_a_whole_sweep_side_by_side(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    finished = run(sweep(seeds=1, text="1-2"), tmp_path / "s", Local(SLOTS, worker=worker), lambda _: None)
    assert len(finished.results) == 2
    assert not finished.failures


def test_slots_are_groups_of_cores_or_gpus() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert len(local_slots(1, gpus=[])) == cores
    assert len(local_slots(cores, gpus=[])) == 1
    assert len(local_slots(10 * cores, gpus=[])) == 1
    first, second = local_slots(1, gpus=["0", "GPU-5"])
    assert first.environment(3)["CUDA_VISIBLE_DEVICES"] == "0"
    assert second.environment(3) == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "GPU-5"}
    assert "CUDA_VISIBLE_DEVICES" not in Slot("cores", (0, 1)).environment(2)
