"""A folder that appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from smelt_match.errors import BadInput
from smelt_match.files import explained, no_parent


def check_folder(path: Path, force: bool, ours: re.Pattern[str]) -> None:
    """Refuse early a folder that `new_folder` could not make.

    ``ours`` is what the command writes: ``force`` never removes a folder that holds files of other names.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise BadInput(f"{path}: exists already, and is no folder", "choose another -o DIR")
    if path.is_dir():
        if not force:
            raise BadInput(f"{path}: exists already", "add --force to replace it, or choose another -o DIR")
        other = next((entry.name for entry in sorted(path.iterdir()) if not _is_ours(entry, ours)), None)
        if other is not None:
            raise BadInput(
                f"{path}: holds {other!r}, which this command does not write; --force would remove it",
                "move it away, or choose another -o DIR",
            )
    parent = Path(os.path.abspath(path)).parent
    if not parent.is_dir():
        raise no_parent(path)
    with explained(path, "write there"), tempfile.TemporaryFile(dir=parent):
        pass


def _is_ours(entry: Path, ours: re.Pattern[str]) -> bool:
    return entry.is_file() and ours.fullmatch(entry.name) is not None


@contextmanager
def new_folder(path: Path, force: bool, ours: re.Pattern[str]) -> Iterator[Path]:
    """A folder beside ``path`` to write into; when the block ends without an error, it is ``path``.

    Until then ``path`` holds what it held. A killed run leaves at most the hidden folder beside it, which the next run
    removes, and where ``force`` replaces a folder, one killed between two renames leaves the old one under a hidden
    name, which stays.
    """
    check_folder(path, force, ours)
    final = Path(os.path.abspath(path))
    with explained(path, "write there"):
        _sweep(final, ours)
        scratch, handle = _scratch(final)
    try:
        yield scratch
        with explained(path, "write there"):
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(scratch, 0o777 & ~umask)
            for entry in scratch.iterdir():
                os.chmod(entry, 0o666 & ~umask)
                _sync(entry)
            _sync(scratch)
            _swap(scratch, final, force, ours)
            _sync(final.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(handle)


def _scratch(final: Path) -> tuple[Path, int]:
    """A hidden folder beside ``final`` with a handle that locks it: a lock ends with its process, however that ends."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        handle = os.open(scratch, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks, where nothing is swept either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if scratch.is_dir():
            return scratch, handle
        os.close(handle)  # another run swept it before it was locked


def _sweep(final: Path, ours: re.Pattern[str]) -> None:
    """Remove the hidden folders that killed runs left beside ``final``: of its name, only ours, locked by nobody."""
    left = re.compile(re.escape(f".{final.name}.") + "[a-z0-9_]{8}")
    for scratch in final.parent.iterdir():
        if not left.fullmatch(scratch.name) or scratch.is_symlink() or not scratch.is_dir():
            continue
        with suppress(OSError):  # locked, gone meanwhile, or somebody else's
            handle = os.open(scratch, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if all(_is_ours(entry, ours) for entry in scratch.iterdir()):
                    shutil.rmtree(scratch)
            finally:
                os.close(handle)


def _swap(scratch: Path, final: Path, force: bool, ours: re.Pattern[str]) -> None:
    if not final.exists():
        os.rename(scratch, final)
        return
    check_folder(final, force, ours)  # somebody may have made it meanwhile
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.old.", dir=final.parent))
    os.rename(final, old)
    try:
        os.rename(scratch, final)
    except OSError:
        os.rename(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
