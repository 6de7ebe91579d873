"""Arms as jobs of a real Slurm of one node: an array, a failure, a requeue, and a cancelled queue.

``sh tests/ablate/slurm_setup.sh`` makes such a Slurm from Debian's packages; where there is none, these tests skip.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from smelt_match.ablate.folder import failure, state, write_run
from smelt_match.ablate.slurm import Slurm, Task
from smelt_match.errors import BadInput, MissingExtra
from tests.ablate import trainers
from tests.ablate.conftest import run_of
from tests.ablate.trainers import moody

DEADLINE = 120.0
PARAMETERS = {"time": "5", "mem": "500", "cpus-per-task": "1", "signal_delay_s": "2"}


def _answers() -> bool:
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return False
    try:
        ran = subprocess.run(["sinfo", "-h"], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0 and bool(ran.stdout.strip())


needs_slurm = pytest.mark.skipif(not _answers(), reason="no Slurm answers; tests/ablate/slurm_setup.sh makes one")


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders of three arms, where the node sees them and can import these tests."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    home = Path("/tmp") / f"smelt-match-slurm-{os.getpid()}-{time.monotonic_ns()}"
    places = [home / "arms" / f"arm{seed}" for seed in range(3)]
    for seed, place in enumerate(places):
        write_run(place, run_of(seed=seed))
    yield places
    shutil.rmtree(home, ignore_errors=True)


def shown(job: str) -> str:
    return subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slurm
@needs_slurm
def test_arms_are_jobs_of_an_array_and_one_that_fails_takes_no_other_along(arms: list[Path]) -> None:
    (arms[1].parent / "arm1.mood").write_text("bad input")
    told: list[str] = []
    launcher = Slurm(arms[0].parents[1], PARAMETERS, moody)
    launcher.run(arms, told.append)
    assert [state(place) for place in arms] == ["done", "failed", "done"]
    assert failure(arms[1]) == "loss is nan at step 7; lower the rate"
    first, second, third = told[0].removeprefix("queued 3 jobs: ").split(", ")
    assert {job.split("_")[0] for job in (first, second, third)} == {first.split("_")[0]}


@pytest.mark.slurm
@needs_slurm
def test_a_preempted_job_is_queued_again_and_goes_on(arms: list[Path]) -> None:
    (arms[0].parent / "arm0.mood").write_text("until asked")
    told: list[str] = []
    launcher = Slurm(arms[0].parents[1], PARAMETERS, moody)
    thread = threading.Thread(target=launcher.run, args=(arms[:1], told.append), daemon=True)
    thread.start()
    until(lambda: (arms[0] / "begun").exists())
    job = told[0].removeprefix("queued 1 jobs: ")
    subprocess.run(["scancel", "--signal=USR2", job], check=True)  # what Slurm sends before it preempts
    until(lambda: "Restarts=1" in shown(job))
    # Slurm lets a job wait for two minutes until its old credential has expired; a test need not.
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert state(arms[0]) == "done"


@pytest.mark.slurm
@needs_slurm
def test_closing_cancels_what_is_queued_and_what_runs(arms: list[Path]) -> None:
    for seed, place in enumerate(arms):
        (place.parent / f"arm{seed}.mood").write_text("hangs")
    told: list[str] = []
    launcher = Slurm(arms[0].parents[1], PARAMETERS, moody)
    thread = threading.Thread(target=launcher.run, args=(arms, told.append), daemon=True)
    thread.start()
    until(lambda: any((place / "begun").exists() for place in arms))
    launcher.close()
    job = told[0].removeprefix("queued 3 jobs: ").split("_")[0]
    until(lambda: not subprocess.run(["squeue", "-h", "-j", job], capture_output=True, check=False).stdout.strip())
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGTERM, 1), (signal.SIGUSR2, 2)])
def test_a_job_that_is_asked_to_stop_saves_its_arm_first(arms: list[Path], number: signal.Signals, jobs: int) -> None:
    """SIGTERM leaves it to Slurm to queue the job again; after SIGUSR2 submitit does that, in its local queue, too."""
    from submitit import LocalExecutor

    (arms[0].parent / "arm0.mood").write_text("until asked")
    executor = LocalExecutor(arms[0].parents[1] / "local")
    executor.update_parameters(timeout_min=2)
    job = executor.submit(Task(moody), str(arms[0]))
    until(lambda: (arms[0] / "begun").exists())
    assert state(arms[0]) == "running"
    (worker,) = _worker_pids(job._process.pid)
    os.kill(worker, number)
    assert job.result() is True
    assert state(arms[0]) == "done"
    assert job.stdout().count("Starting with JobEnvironment") == jobs


def _worker_pids(controller: int) -> list[int]:
    """The processes that submitit's controller has started."""
    return [int(pid) for pid in Path(f"/proc/{controller}/task/{controller}/children").read_text().split()]


def test_a_machine_without_sbatch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="there is no sbatch on this machine"):
        Slurm(tmp_path, {}, moody)


def test_an_installation_without_submitit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtra) as caught:
        Slurm(tmp_path, {}, moody)
    assert caught.value.hint == "pip install 'smelt-match[slurm]'"


def test_a_time_that_is_not_minutes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda _: 2))
    with pytest.raises(BadInput, match="time=1-00:00: minutes are wanted"):
        Slurm(tmp_path, {"time": "1-00:00"}, moody)


def test_the_trainer_of_these_tests_can_be_imported_by_a_node() -> None:
    assert isinstance(trainers, ModuleType)
    assert moody.__module__ == "tests.ablate.trainers"
