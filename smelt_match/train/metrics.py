"""The log of one leg: a line of JSON for each logged step, and the same for TensorBoard.

``metrics.jsonl`` holds what was computed and no time, so that a run that was stopped and resumed leaves the bytes of
one that was not; ``timings.jsonl`` holds how fast it went.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from smelt_match.errors import BadInput, MissingExtra
from smelt_match.files import explained

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"


class MetricsLog:
    """Appends to a leg's log.

    Args:
        folder: The leg's.
        start: Steps that are done: lines of later ones, which a stopped run left behind, are dropped.
        tensorboard: A folder for TensorBoard's files, or None.
    """

    def __init__(self, folder: Path, start: int, tensorboard: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, TIMINGS):
            truncate(folder / name, start)
        self.metrics, self.timings = ((folder / name).open("a", encoding="utf-8") for name in (METRICS, TIMINGS))
        self.board = None if tensorboard is None else summary_writer()(str(tensorboard), purge_step=start + 1)

    def write(self, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        """Append a line to each file; both have the key ``step``, counted from 1."""
        for stream, line in ((self.metrics, metrics), (self.timings, timings)):
            with explained(Path(stream.name), "write there"):
                stream.write(json.dumps(line, allow_nan=True) + "\n")
                stream.flush()
        if self.board is not None:
            for name, value in (metrics | timings).items():
                if isinstance(value, (int, float)) and name != "step":
                    self.board.add_scalar(name, value, metrics["step"])
            for line in metrics.get("visits", ()):
                where = f"visit {line['visit']}"
                for name in line.keys() - {"visit", "block"}:
                    self.board.add_scalar(f"{name}/{where}", line[name], metrics["step"])

    def sync(self) -> None:
        """Put all lines on the disk; a checkpoint that is complete has its log."""
        for stream in (self.metrics, self.timings):
            with explained(Path(stream.name), "write there"):
                stream.flush()
                os.fsync(stream.fileno())
        if self.board is not None:
            self.board.flush()

    def __enter__(self) -> Self:
        """For as long as steps are taken."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for stream in (self.metrics, self.timings):
            with suppress(OSError):  # what could not be written was told when it was
                stream.close()
        if self.board is not None:
            self.board.close()


def truncate(path: Path, start: int) -> None:
    """Drop the lines of steps after ``start``, and a last line that was cut off.

    Raises:
        BadInput: Another line is not one of ours.
    """
    if not path.is_file():
        return
    end = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                break
            try:
                step = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                raise BadInput(f"{path}:{number}: is no line of a log", "move the file away") from None
            if step > start:
                break
            end += len(line)
    if end < path.stat().st_size:
        os.truncate(path, end)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a leg's ``metrics.jsonl``."""
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def summary_writer() -> Any:
    """TensorBoard's writer.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("--tensorboard: tensorboard is not installed", "pip install 'smelt-match[train]'") from error
    return SummaryWriter
