"""The worker: trains the arm in one folder. A process of its own for each arm, so that none takes another along.

``python -m smelt_match.ablate.work FOLDER``
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from smelt_match.ablate.folder import FAILURE, held, record_failure
from smelt_match.ablate.result import RESULT, ArmResult
from smelt_match.errors import SmeltMatchError, Stopped
from smelt_match.files import write_atomic
from smelt_match.train.config import TrainConfig, read_config
from smelt_match.train.stop import Asked, never, on_signal

Trainer = Callable[[TrainConfig, Path, Asked], ArmResult]


def work(folder: Path, train: Trainer, asked_to_stop: Asked = never) -> bool:
    """Train the arm in a folder to its result, from where it was left.

    Whatever goes wrong is recorded in the folder; an interrupt is not, since the arm can go on.

    Returns:
        Whether the result is there.

    Raises:
        Stopped: That was asked, and what was trained so far is saved.
    """
    if (folder / RESULT).exists():
        return True
    with held(folder, "arm"):
        (folder / FAILURE).unlink(missing_ok=True)
        try:
            result = train(read_config(folder), folder, asked_to_stop)
        except Stopped:
            raise
        except SmeltMatchError as error:
            record_failure(folder, error.message, error.hint)
            print(f"error: {'; '.join(filter(None, (error.message, error.hint)))}", file=sys.stderr)
            return False
        except Exception as error:
            record_failure(folder, f"{type(error).__name__}: {error}")
            traceback.print_exc()
            return False
        write_atomic(folder / RESULT, result.model_dump_json(indent=2) + "\n", force=True)
    return True


def command(folder: Path, cores: tuple[int, ...] = ()) -> list[str]:
    """The command line of a worker that ends when its parent does."""
    pinned = ["--cores", ",".join(str(core) for core in cores)] if cores else []
    return [sys.executable, "-m", "smelt_match.ablate.work", str(folder), "--tied", *pinned]


def main(args: list[str] | None = None) -> int:
    """Train one folder's arm; 0 if its result is there, 143 if SIGTERM stopped it and it is saved, else 1."""
    parser = argparse.ArgumentParser(prog="smelt_match.ablate.work", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tied", action="store_true", help="end when standard input does, as when the parent dies")
    parser.add_argument("--cores", default="", help="run on these cores only, such as 0,1")
    asked = parser.parse_args(args)
    if asked.tied:
        end_with_parent()
    if asked.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in asked.cores.split(",")})
    # A scheduler's SIGTERM may come to all processes, and then from the parent again, which kills what takes too long.
    with on_signal(signal.SIGTERM, patient=asked.tied) as asked_to_stop:
        from smelt_match.ablate.trainer import train_arm

        return run(asked.folder, train_arm, asked_to_stop)


def run(folder: Path, train: Trainer, asked_to_stop: Asked) -> int:
    """Train the arm in a folder, and return the exit code of a worker."""
    try:
        return 0 if work(folder, train, asked_to_stop) else 1
    except Stopped as stopped:
        print(stopped.message, file=sys.stderr)
        return stopped.exit_code


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, in whatever way."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    while os.read(0, 4096):  # nothing is ever written: the pipe ends when the parent does
        pass
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
