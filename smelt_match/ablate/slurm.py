"""Workers as jobs of a Slurm cluster, through submitit: one array, requeued where Slurm preempts or times out.

A job that is requeued goes on where it was, since an arm's state is its folder, and the step that runs is saved before.
Source of the mechanism: submitit's documentation on checkpointing,
https://github.com/facebookincubator/submitit/blob/main/docs/checkpointing.md
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from smelt_match.ablate.launch import Told, check_installed, note_end
from smelt_match.ablate.work import Trainer, work
from smelt_match.errors import BadInput, Stopped
from smelt_match.train.stop import on_signal

JOBS = "slurm"
POLL_SECONDS = 2.0
DEFAULT_MINUTES = 60  # then the job is queued again and goes on
MAX_REQUEUES = 1000
ENDED_WELL, ENDED_BADLY = 0, 1


class Task:
    """What runs in a job: the arm of one folder. Asked to stop, it saves the arm and hands it back to the queue.

    submitit's own signal (SIGUSR2, if nothing else is set) has it queue the job again, which would cut the step that
    runs short: it gets the signal once that step is saved. After SIGTERM the arm is saved, too, and goes on until Slurm
    ends it: a job that Slurm preempts it queues again itself, but not one that has ended before.
    """

    def __init__(self, train: Trainer) -> None:
        self.train = train

    def __call__(self, folder: str) -> bool:
        """Train the arm; whether its result is there."""
        requeue = _requeue_signal()
        preempted = False
        while not preempted:
            with on_signal(signal.SIGTERM) as ending, on_signal(requeue) as asked:
                try:
                    return work(Path(folder), self.train, lambda: ending() or asked())
                except Stopped:
                    preempted = asked()
        signal.raise_signal(requeue)  # submitit queues the job again, and ends this process
        return False

    def checkpoint(self, folder: str) -> Any:
        """The job to queue again, when this one is preempted or runs out of time."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, folder)


class Slurm:
    """Arms as the jobs of an array."""

    def __init__(self, folder: Path, parameters: Mapping[str, str], train: Trainer) -> None:
        """Prepare jobs whose logs lie in the sweep's folder.

        Args:
            folder: The sweep's folder, on a file system that all nodes share.
            parameters: Options of sbatch by their long names, such as partition or gres; time is in minutes.
            train: What each job calls; a function of a module that the nodes can import.

        Raises:
            MissingExtra: submitit is not installed.
            BadInput: No sbatch is there, or an option has a bad value.
        """
        check_installed("slurm")
        import submitit

        if submitit.SlurmExecutor.affinity() < 0:
            raise BadInput("--launcher slurm: there is no sbatch on this machine", "run this on a login node of Slurm")
        self._task = Task(train)
        self._executor = submitit.SlurmExecutor(folder=folder.resolve() / JOBS, max_num_timeout=MAX_REQUEUES)
        self._executor.update_parameters(**_sbatch(parameters, set(submitit.SlurmExecutor._valid_parameters())))
        self._jobs: list[Any] = []
        self._closed = False

    def run(self, folders: Sequence[Path], told: Told) -> None:
        """Queue all folders as one array and wait until each has ended."""
        jobs = self._executor.map_array(self._task, [str(folder.resolve()) for folder in folders])
        self._jobs += jobs
        told(f"queued {len(jobs)} jobs: {', '.join(job.job_id for job in jobs[:8])}{', …' if len(jobs) > 8 else ''}")
        waiting = dict(zip(folders, jobs, strict=True))
        absent: set[str] = set()
        while waiting and not self._closed:
            queued = _queued()
            for folder, job in list(waiting.items()):
                written = job.paths.result_pickle.exists()
                if written or job.job_id in absent - queued:
                    del waiting[folder]
                    note_end(folder, ENDED_WELL if written else ENDED_BADLY, told, job.paths.stderr)
            # Between two states a job may be in no list for a moment: absent twice is gone.
            absent = {job.job_id for job in waiting.values()} - queued
            if waiting:
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Cancel what is queued or runs."""
        self._closed = True
        running = _queued() if self._jobs else set()
        for job in self._jobs:
            if job.job_id in running:
                job.cancel()


def _requeue_signal() -> signal.Signals:
    from submitit.core.job_environment import JobEnvironment

    return signal.Signals(JobEnvironment._usr_sig())


def _queued() -> set[str]:
    """The jobs of this user that wait or run. Slurm's accounting would say more, and many clusters have none."""
    ran = subprocess.run(["squeue", "-h", "-r", "--me", "-o", "%i"], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise BadInput(f"squeue: {ran.stderr.strip()[:300]}", "the jobs go on; run the same command again later")
    return set(ran.stdout.split())


def _sbatch(parameters: Mapping[str, str], known: Set[str]) -> dict[str, Any]:
    """Options of sbatch as submitit takes them: those it knows by name, all others as they are."""
    found: dict[str, Any] = {"job_name": "smelt-match", "time": DEFAULT_MINUTES}
    others: dict[str, str] = {}
    for name, value in parameters.items():
        key = name.replace("-", "_")
        if key == "time" and not value.isdecimal():
            raise BadInput(f"--slurm time={value[:40]}: minutes are wanted, such as time=720")
        if key in known:
            found[key] = int(value) if value.isdecimal() else value
        else:
            others[key] = value
    return {**found, "additional_parameters": others}
