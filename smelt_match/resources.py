"""Where the shipped data lies: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def data_files(folder: str) -> list[Path]:
    """The YAML files in ``specs``, one of its folders, or ``search``, in name order."""
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (root / folder).is_dir():
            return sorted((root / folder).glob("*.yaml"))
    raise FileNotFoundError(f"the package's own {folder}/ data is missing; reinstall smelt-match")
