"""Launchers: who runs the workers, and where. The local one has a slot for each GPU or group of cores."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from smelt_match.ablate.folder import LOG, STOPPED, failure, record_failure, state
from smelt_match.ablate.work import command
from smelt_match.errors import BadInput, MissingExtra, Stopped

Told = Callable[[str], None]
SECONDS_TO_SAVE = 60.0  # that workers have to end by themselves
NEEDED = {"slurm": "submitit", "ray": "ray"}  # by the launcher, whose name is that of its extra, too


class Launcher(Protocol):
    """Runs workers. Folders hold all state, so that a launcher returns nothing."""

    def run(self, folders: Sequence[Path], told: Told) -> None:
        """Work on all folders; return when each is done or has failed. ``told`` hears of each start and end."""

    def close(self) -> None:
        """End whatever still runs."""


def check_installed(launcher: str) -> None:
    """Refuse a launcher, by its name, whose library is not installed; looking for it loads nothing.

    Raises:
        MissingExtra: It is not installed.
    """
    library = NEEDED.get(launcher)
    if library is not None and find_spec(library) is None:
        raise MissingExtra(
            f"--launcher {launcher} needs {library}, which is not installed", f"pip install 'smelt-match[{launcher}]'"
        )


@dataclass(frozen=True)
class Slot:
    """A place for one arm: a group of cores, or a GPU."""

    name: str
    cores: tuple[int, ...] = ()
    gpu: str | None = None

    def environment(self, threads: int) -> dict[str, str]:
        """What a worker's process gets on top of this one's environment."""
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        return limits if self.gpu is None else {**limits, "CUDA_VISIBLE_DEVICES": self.gpu}


def local_slots(threads: int, gpus: Sequence[str] | None = None) -> list[Slot]:
    """A slot for each GPU; without any, for each group of ``threads`` cores, and at least one."""
    if gpus is None:
        gpus = visible_gpus()
    if gpus:
        return [Slot(f"GPU {gpu}", gpu=gpu) for gpu in gpus]
    has = getattr(os, "sched_getaffinity", None)
    cores = sorted(has(0)) if has else list(range(os.cpu_count() or 1))
    groups = [tuple(cores[i : i + threads]) for i in range(0, len(cores) - threads + 1, threads)]
    return [Slot(f"cores {','.join(map(str, group))}", group) for group in groups] or [Slot("all cores", tuple(cores))]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(index) for index in range(count)]


class Local:
    """Workers as child processes on this machine, side by side, one to a slot."""

    def __init__(
        self,
        slots: Sequence[Slot],
        threads: int = 1,
        worker: Callable[[Path, tuple[int, ...]], list[str]] = command,
    ) -> None:
        self._threads, self._worker = threads, worker
        self._slots: queue.Queue[Slot] = queue.Queue()
        for slot in slots:
            self._slots.put(slot)
        self._count = len(slots)
        self._children: dict[subprocess.Popen[bytes], Told] = {}  # and who hears of them
        self._guard = threading.Lock()
        self._closed = False

    def run(self, folders: Sequence[Path], told: Told) -> None:
        """Work on all folders. Several threads may call this: slots are shared."""
        pool = ThreadPoolExecutor(min(self._count, len(folders)) or 1)
        try:
            for future in [pool.submit(self._one, folder, told) for folder in folders]:
                future.result()
        except BaseException:
            self.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Have every worker save the step that runs and end; kill it and what it started where that takes too long.

        A signal that raises an exception here, such as a second SIGTERM or Ctrl-C, kills at once.
        """
        with self._guard:
            self._closed = True
            children = dict(self._children)
        try:
            for child in children:
                child.terminate()
            for told in set(children.values()):
                with suppress(OSError, ValueError):  # nobody can be told when stderr is closed
                    told(
                        f"stopping the arms at work ({len(children)}): each saves the step that runs; this waits for "
                        f"up to {SECONDS_TO_SAVE:.0f} s, and another signal ends them at once"
                    )
            deadline = time.monotonic() + SECONDS_TO_SAVE
            for child in children:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for child in children:
                if child.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)

    def _one(self, folder: Path, told: Told) -> None:
        slot = self._slots.get()
        try:
            self._child(folder, slot, told)
        finally:
            self._slots.put(slot)

    def _child(self, folder: Path, slot: Slot, told: Told) -> None:
        environment = {**os.environ, **slot.environment(self._threads)}
        with (folder / LOG).open("ab") as log:
            with self._guard:
                if self._closed:
                    return
                child = subprocess.Popen(
                    self._worker(folder, slot.cores),
                    stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True,
                )  # fmt: skip
                self._children[child] = told
            told(f"{folder.name}: started on {slot.name}")
            try:
                code = child.wait()
            finally:
                with self._guard:
                    del self._children[child]
                    closed = self._closed
                assert child.stdin is not None
                child.stdin.close()
        if closed and code < 0:
            told(f"{folder.name}: was killed; it goes on from what it saved last")
        else:
            note_end(folder, code, told)


def note_end(folder: Path, code: int, told: Told, log: Path | None = None) -> None:
    """Tell how a worker ended, and record a failure that it could not record itself; ``log`` is what it printed."""
    reached = state(folder)
    if reached == "running":
        told(f"{folder.name}: another process is at work on it")
        return
    if reached == "stopped" and code == Stopped.exit_code:
        told(f"{folder.name}: {STOPPED}")
        return
    if reached not in ("done", "failed"):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        likely = "; signal 9 is often the system that is out of memory" if code == -signal.SIGKILL else ""
        message, hint = f"the worker {how} without a result{likely}", f"see {log or folder / LOG}"
        try:
            record_failure(folder, message, hint)
        except BadInput as error:  # as on a full disk: the other arms go on
            told(f"{folder.name}: failed: {message}; {hint}; {error.message}")
            return
    told(f"{folder.name}: done" if reached == "done" else f"{folder.name}: failed: {failure(folder)}")
