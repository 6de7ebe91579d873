"""Where a study is kept: in memory, in a journal file, or in a database; and what can be wrong with that.

A stored study carries the identity of its search, and is continued by that search alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt_match.errors import BadInput, MissingExtra, SmeltMatchError
from smelt_match.files import no_parent

if TYPE_CHECKING:
    import optuna

NAME = "smelt-match"
LEFT = "the file is left as it is; choose another --study PATH"


def open_study(
    identity: Mapping[str, str],
    storage: str | None,
    anchors: Iterable[dict[str, Any]],
    check: Callable[[optuna.Study], None],
) -> optuna.Study:
    """The stored study, or a new one. Nothing is written before it is known that the study is of this search.

    Args:
        identity: What must be the same for a stored study to be continued.
        storage: A journal file, a database URL, or None to keep the study in memory.
        anchors: Suggestions that a new study tries first.
        check: Refuses a stored study whose trials are not of this search.

    Raises:
        BadInput: The storage is not a study, or one of another search.
    """
    import optuna

    kept_in = backend(storage)
    study = None
    if storage is not None:
        with suppress(KeyError):
            study = optuna.load_study(study_name=NAME, storage=kept_in)
            _refuse_another(identity, study, storage)
            check(study)
        if "://" not in storage:
            drop_half_line(Path(storage))
    if study is None:
        study = optuna.create_study(storage=kept_in, study_name=NAME)
    if "identity" not in study.user_attrs:
        study.set_user_attr("identity", dict(identity))
        for anchor in anchors:
            study.enqueue_trial(anchor, skip_if_exists=True)
    for left in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(left.number, state=optuna.trial.TrialState.FAIL)  # left behind by a killed run
    return study


def _refuse_another(identity: Mapping[str, str], study: optuna.Study, storage: str) -> None:
    """Refuse a stored study that is not of this search."""
    stored = study.user_attrs.get("identity")
    if stored is None and len(study.get_trials(deepcopy=False)):
        raise BadInput(f"{storage}: holds a study named {NAME!r} that this program did not make")
    if stored is not None and stored != dict(identity):
        known = stored if isinstance(stored, dict) else {}
        faults = [
            f"{storage}: {name} is {known.get(name, 'not stated')!s}, this search has {identity.get(name, 'none')}"
            for name in {**identity, **known}
            if known.get(name) != identity.get(name)
        ]
        raise BadInput("\n".join(faults), "choose another --study PATH, or repeat the search the study was made for")


def backend(storage: str | None) -> Any:
    """The Optuna storage of a study: None in memory, a database URL, or a journal file that is checked first."""
    import optuna

    if storage is None:
        return None
    if "://" in storage:
        try:
            return optuna.storages.RDBStorage(storage)
        except ImportError as error:
            module = getattr(error.__cause__, "name", None) or "psycopg2"
            package = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}.get(module, module)
            raise MissingExtra(f"--study {storage}: the driver {module} is missing", f"pip install {package}") from None
    path = Path(storage)
    _check_journal(path)
    from optuna.storages.journal import JournalFileBackend

    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


def _check_journal(path: Path) -> None:
    """Refuse a file that is no journal; a last line that a killed run left half written may be anything."""
    if path.is_dir():
        raise BadInput(f"{path}: is a folder, not a study journal")
    if not path.parent.is_dir():
        raise no_parent(path)
    if not path.exists():
        return
    if not path.is_file():
        raise BadInput(f"{path}: is not a regular file")
    data = path.read_bytes()
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            sound = isinstance(record, dict) and "op_code" in record
        except (ValueError, RecursionError):
            sound = False
        if not sound:
            raise BadInput(
                f"{path}:{number}: not a line of a study journal: {line[:40].decode('utf-8', 'replace')!r}",
                LEFT,
            )
    if rest and not lines and not rest.startswith(b'{"op_code":'):
        raise BadInput(f"{path}: not a study journal", LEFT)


def drop_half_line(path: Path) -> None:
    """Drop a last line that a killed run left half written."""
    data = path.read_bytes()
    with path.open("r+b") as stream:
        stream.truncate(data.rfind(b"\n") + 1)


@contextmanager
def storage_errors(storage: str | None) -> Iterator[None]:
    """Turn what storages raise into messages for people, and never hide an interrupt."""
    try:
        yield
    except (SmeltMatchError, KeyboardInterrupt):
        raise
    except OSError as error:
        raise BadInput(f"{storage}: cannot use this study: {error.strerror or error}") from None
    except Exception as error:  # storages raise kinds of their drivers
        if storage is None:
            raise
        if _interrupted(error):
            raise KeyboardInterrupt from None
        first = (str(error).splitlines() or [""])[0]
        raise BadInput(f"{storage}: cannot use this study: {type(error).__name__}: {first}") from None


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error came about while an interrupt was being handled, which a library may hide behind its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
