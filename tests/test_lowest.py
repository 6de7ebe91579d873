"""The lower bounds of the dependencies are the versions that were tested."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = (ROOT / "tests" / "lowest.txt").read_text(encoding="utf-8").splitlines()
UNTESTED_EXTRAS = {"ray", "lint", "bench"}


def versions(lines: Iterable[str], operator: str) -> dict[str, set[Version]]:
    """By the name of each package, the versions that ``operator`` stands before; None is an empty set."""
    found: dict[str, set[Version]] = defaultdict(set)
    for requirement in map(Requirement, lines):
        stated = {Version(one.version) for one in requirement.specifier if one.operator == operator}
        found[canonicalize_name(requirement.name)] |= stated
    return found


def test_every_lower_bound_is_the_version_that_was_tested() -> None:
    extras = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in UNTESTED_EXTRAS}
    declared = versions([*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)], ">=")
    assert declared == versions([line for line in TESTED if not line.startswith("#")], "==")
    assert all(len(bounds) == 1 for bounds in declared.values())
