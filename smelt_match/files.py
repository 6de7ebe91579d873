"""Reading and writing files so that a failure is a sentence and never a half-written file."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smelt_match.errors import BadInput

MAX_TEXT_BYTES = 8 * 2**20


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """An error of the file system inside the block becomes a `BadInput` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path}: cannot {doing}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path
        raise BadInput(f"{str(path)!r}: cannot {doing}: {error}") from error


def read_text(path: Path, what: str = "file", limit: int = MAX_TEXT_BYTES) -> str:
    """The UTF-8 text of a regular file of at most ``limit`` bytes; `BadInput` says what is wrong otherwise."""
    with explained(path, f"read this {what}"):
        if path.is_dir():
            raise BadInput(f"{path}: is a folder, not a {what}")
        if not path.exists():
            raise BadInput(f"{path}: no such {what}")
        if not path.is_file():
            raise BadInput(f"{path}: is not a regular file")
        size = path.stat().st_size
        if size > limit:
            raise BadInput(f"{path}: {size:,} bytes, more than the {limit:,} a {what} may have")
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text (byte {error.start})", f"a {what} is plain text") from None
    if not text.strip():  # a byte order mark alone is nothing, too
        raise BadInput(f"{path}: the {what} is empty")
    if "\0" in text:
        raise BadInput(f"{path}: binary data, not a {what}", f"a {what} is plain text")
    return text


def check_writable(path: Path, force: bool) -> None:
    """Refuse early what `write_atomic` would refuse late, before any work is spent."""
    with explained(path, "write there"):
        if "\0" in str(path):
            raise BadInput(f"{str(path)!r}: embedded null byte", "name another file")
        if path.is_dir():
            raise BadInput(f"{path}: is a folder; name a file in it")
        if path.exists() and not force:
            raise BadInput(f"{path}: exists already", "add --force to replace it, or choose another path")
        parent = path.parent
        if not parent.is_dir():
            raise no_parent(path)
        with tempfile.TemporaryFile(dir=parent):
            pass


def no_parent(path: Path) -> BadInput:
    """What is said of an output whose folder is not there."""
    return BadInput(
        f"{path}: the folder {path.parent} does not exist", f"make it first: mkdir -p {shlex.quote(str(path.parent))}"
    )


def write_atomic(path: Path, text: str | bytes, force: bool = False) -> None:
    """Write text or bytes so that ``path`` holds either what it held or all of them, whenever the run is killed."""
    check_writable(path, force)
    with explained(path, "write there"):
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode() if isinstance(text, str) else text)
                stream.flush()
                os.fsync(stream.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(scratch, 0o666 & ~umask)
            if force:
                os.replace(scratch, path)
            else:
                os.link(scratch, path)  # fails if somebody made the file meanwhile
        finally:
            if os.path.exists(scratch):
                os.unlink(scratch)


def remove_scratch(folder: Path) -> None:
    """Delete what a killed `write_atomic` left anywhere in a folder that nobody else writes to."""
    for path in folder.rglob(".*.????????"):
        if path.is_file():
            path.unlink()
