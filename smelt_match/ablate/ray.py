"""Workers as tasks of a Ray cluster, each in a process that Ray gives its cores or its GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from smelt_match.ablate.launch import Told, check_installed, note_end, visible_gpus
from smelt_match.ablate.work import Trainer, work


class Ray:
    """Arms as tasks of Ray: of the cluster that RAY_ADDRESS names, or of one started on this machine."""

    def __init__(self, threads: int, train: Trainer) -> None:
        """Connect to Ray.

        Args:
            threads: Cores that an arm gets where there is no GPU.
            train: What each task calls.

        Raises:
            MissingExtra: Ray is not installed.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        check_installed("ray")
        import ray

        self._ray: Any = ray
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, ignore_reinit_error=True)
        wanted = {"num_gpus": 1} if visible_gpus() else {"num_cpus": threads}
        self._task = ray.remote(max_retries=3, max_calls=1, **wanted)(_task)
        self._train = train

    def run(self, folders: Sequence[Path], told: Told) -> None:
        """Hand all folders to Ray and wait until each has ended."""
        waiting = {self._task.remote(str(folder.resolve()), self._train): folder for folder in folders}
        told(f"handed {len(waiting)} tasks to Ray")
        while waiting:
            for reference in self._ray.wait(list(waiting), num_returns=1)[0]:
                note_end(waiting.pop(reference), self._code(reference), told)

    def _code(self, reference: Any) -> int:
        try:
            return 0 if self._ray.get(reference) else 1
        except Exception:  # a worker that was lost three times; what it left is in the folder
            return 1

    def close(self) -> None:
        """End all tasks, and Ray where this process started it."""
        with suppress(Exception):
            self._ray.shutdown()


def _task(folder: str, train: Trainer) -> bool:
    return work(Path(folder), train)
