"""A sweep's folder, which is its whole state: what was asked, and one folder for each arm and each short run."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from smelt_match.ablate.result import RESULT
from smelt_match.errors import BadInput
from smelt_match.files import check_writable, read_text, write_atomic
from smelt_match.spec.parts import Record
from smelt_match.spec.yaml import describe
from smelt_match.train.config import RUN_FILE, TrainConfig, check_same, read_config

SWEEP = "sweep.json"
ARMS, SHORTLIST, RATES = "arms", "shortlist", "rates"  # the runs in full, and the short ones of two kinds
FAILURE = "failure.json"
LOCK = ".busy"  # the trainer has a lock of its own
LOG = "log.txt"
State = Literal["done", "running", "failed", "stopped", "missing"]
STOPPED = "stopped before its end; what it had trained is saved"
MAX_SHOWN = 12


class SweepFile(Record):
    """What a sweep's folder says of itself.

    Attributes:
        question: Everything that decides the results; another question needs another folder.
        seeds: How many seeds were asked for. More may be asked for later.
        arms: The names of all arms, which are the names of their folders.
    """

    schema_version: Literal[1] = 1
    question: dict[str, Any]
    seeds: Annotated[int, Field(ge=1)]
    arms: tuple[str, ...]


def open_folder(folder: Path, asked: SweepFile) -> None:
    """Make a sweep's folder, or go on in it.

    Raises:
        BadInput: The folder holds another sweep (each field that differs is named), or is something else.
    """
    path = folder / SWEEP
    if path.is_file():
        kept = read_sweep(folder)
        differing = list(_differences(kept.question, asked.question))
        if differing:
            shown = differing[:MAX_SHOWN]
            shown += [f"and {len(differing) - MAX_SHOWN} more"] if len(differing) > MAX_SHOWN else []
            raise BadInput(
                "\n".join(f"{folder}: {line}" for line in shown),
                "this folder holds another sweep, and is left as it is; choose another --out",
            )
        if kept.seeds >= asked.seeds:
            return
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: is not a sweep's folder, and is not empty", "choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot make this folder: {error.strerror or error}") from error
    check_writable(path, force=True)
    write_atomic(path, json.dumps(asked.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", force=True)


def read_sweep(folder: Path) -> SweepFile:
    """What a folder says of its sweep; `BadInput` where it is none."""
    path = folder / SWEEP
    if not path.is_file():
        raise BadInput(f"{folder}: holds no sweep (no {SWEEP})", "name a folder that `smelt-match ablate` made")
    try:
        return SweepFile.model_validate_json(read_text(path, "sweep"))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        if fault["type"] == "json_invalid":
            raise BadInput(f"{path}: the file is damaged: {fault['msg']}", "choose another --out") from None
        place = ".".join(str(part) for part in fault["loc"]) or "the whole"
        raise BadInput(f"{path}: {place}: {fault['msg']}", "the file is damaged; choose another --out") from None


def arm_folder(folder: Path, name: str) -> Path:
    """Where an arm lies."""
    return folder / ARMS / name


def short_folders(folder: Path, part: str) -> list[Path]:
    """Where the short runs lie that were begun: those of the shortlist or of the learning rates."""
    return sorted(path for path in (folder / part).glob("*") if (path / RUN_FILE).is_file())


def write_run(folder: Path, config: TrainConfig) -> None:
    """Put an arm's run into its folder; `BadInput` if another run is there."""
    if (folder / RUN_FILE).exists():
        check_same(read_config(folder), config, folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RUN_FILE, config.to_json())


def _differences(ours: Any, theirs: Any, key: str = "") -> Iterator[str]:
    """``key is A, this sweep has B`` for every leaf that differs."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in dict.fromkeys((*ours, *theirs)):
            inner = f"{key}.{name}" if key else name
            yield from _differences(ours.get(name), theirs.get(name), inner)
    elif ours != theirs:
        yield f"{key} is {_words(ours)}, this sweep has {_words(theirs)}"


def _words(value: Any) -> str:
    return json.dumps(value)[:60] if isinstance(value, list) else describe(value)


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder's lock, which the system lets go when the process ends, however it ends.

    Raises:
        BadInput: Another process holds it.
    """
    with (folder / LOCK).open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: another process is at work on this {what}") from None
        yield


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder's lock."""
    path = folder / LOCK
    if not path.exists():
        return False
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state(folder: Path) -> State:
    """How far an arm is: done once its result is there, whatever else is."""
    if (folder / RESULT).exists():
        return "done"
    if is_held(folder):
        return "running"
    if (folder / FAILURE).exists():
        return "failed"
    begun = folder.is_dir() and any(path.name not in (RUN_FILE, LOCK, FAILURE, LOG) for path in folder.iterdir())
    return "stopped" if begun else "missing"


def record_failure(folder: Path, message: str, hint: str = "") -> None:
    """Say in an arm's folder why it failed."""
    text = json.dumps({"message": message, "hint": hint}, indent=2, ensure_ascii=False) + "\n"
    write_atomic(folder / FAILURE, text, force=True)


def failure(folder: Path) -> str:
    """Why an arm failed, in its own words."""
    try:
        found = json.loads(read_text(folder / FAILURE, "failure"))
        return "; ".join(filter(None, (str(found["message"]), str(found["hint"]))))
    except (BadInput, ValueError, KeyError, TypeError):
        return "no reason was recorded"
