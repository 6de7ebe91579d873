"""The checkpoints of one leg: folders that appear whole or not at all, and the name of the latest.

Written by torch.distributed.checkpoint as safetensors, each rank its own shards: any number of ranks reads what any
other number wrote, and nothing in a checkpoint can execute. The file ``latest`` is replaced once a checkpoint is
complete and on the disk, so that what it names can be read whenever the run is killed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from smelt_match.errors import BadInput
from smelt_match.files import read_text, write_atomic
from smelt_match.train.world import World

LATEST = "latest"
KEPT = 2
_NAME = re.compile(r"step-(\d{8,12})")


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: The leg's; it is made if it is not there.
        world: The ranks, which call every method together.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world

    def path(self, step: int) -> Path:
        """Where the checkpoint after so many steps of the leg lies."""
        return self.folder / f"step-{step:08}"

    @property
    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        found = [_NAME.fullmatch(path.name) for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(match[1]) for match in found if match)

    @property
    def latest(self) -> int | None:
        """Steps of the latest checkpoint, or None.

        Raises:
            BadInput: The file that names it names none that is there.
        """
        path = self.folder / LATEST
        if not path.is_file():
            return None
        match = _NAME.fullmatch(read_text(path, "file").strip())
        if match is None or not (self.folder / match[0]).is_dir():
            raise BadInput(f"{path}: names no checkpoint that is there", self._others())
        return int(match[1])

    def _others(self, than: int | None = None) -> str:
        names = [self.path(step).name for step in self.steps if step != than]
        if not names:
            return f"there is no other checkpoint; delete {self.folder} to begin it anew"
        return f"write the name of another checkpoint into {self.folder / LATEST}: {', '.join(names)}"

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint, then make it the latest.

        Raises:
            BadInput: It cannot be written, as on a full disk; the one before it stays the latest.
        """
        final, scratch = self.path(step), self.folder / f".step-{step:08}"
        fault = ""
        try:
            if self.world.leads:
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(scratch, ignore_errors=True)
            self.world.wait()
            with _quiet():
                writer = HuggingFaceStorageWriter(str(scratch), save_distributed=True)
                save(tensors, storage_writer=writer, no_dist=self.world.size == 1)
            if self.world.leads:
                _sync(scratch)
                shutil.rmtree(final, ignore_errors=True)  # one that was complete, but not yet the latest
                os.rename(scratch, final)
                _sync(self.folder)
                write_atomic(self.folder / LATEST, f"{final.name}\n", force=True)
        except (OSError, SafetensorError, CheckpointException, BadInput) as error:
            fault = _reason(error)
            if self.world.leads:
                shutil.rmtree(scratch, ignore_errors=True)
        faults = self.world.agree(fault)
        if faults:
            latest = self.latest
            kept = "no earlier one is there" if latest is None else f"{self.path(latest)} is whole and stays the latest"
            raise BadInput(
                f"{final}: the checkpoint cannot be written: {faults[0]}",
                f"{kept}; make room, then run the same command again",
            )

    def load(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Read a checkpoint into tensors in place.

        Raises:
            BadInput: It cannot be read, or holds other tensors.
        """
        path, fault = self.path(step), ""
        try:
            if not path.is_dir():
                raise BadInput("it is not there")
            with _quiet():
                reader = HuggingFaceStorageReader(str(path))
                load(tensors, storage_reader=reader, no_dist=self.world.size == 1)
        except (OSError, SafetensorError, CheckpointException, BadInput, ValueError, RuntimeError, KeyError) as error:
            fault = _reason(error)
        faults = self.world.agree(fault)
        if faults:
            raise BadInput(f"{path}: the checkpoint cannot be read: {faults[0]}", self._others(step))

    def prune(self, keep: int) -> None:
        """Delete all but the last ``keep`` checkpoints, and what killed saves left behind."""
        if not self.world.leads or not self.folder.is_dir():
            return
        steps = self.steps
        for step in steps[: len(steps) - keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)
        if not keep:
            (self.folder / LATEST).unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says beside its errors: that there is no process group, and tracebacks of what it tried."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _reason(error: BaseException) -> str:
    """The first sentence of what went wrong on the first rank where it did."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
