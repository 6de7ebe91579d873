"""Shared helpers: the program run in this process, and questions built from names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smelt_match.budget.conventions import convention
from smelt_match.budget.count import context_of
from smelt_match.cli import run
from smelt_match.match.grid import find_grid
from smelt_match.match.problem import Question
from smelt_match.spec.family import countable, expand
from smelt_match.spec.grammar import parse_layout
from tests.scaling import synthetic

CONFIGS = Path(__file__).parent / "spec" / "configs"


@dataclass(frozen=True)
class Ran:
    """What one run of the program left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``smelt-match`` with arguments, in this process."""

    def call(*args: object) -> Ran:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def ask() -> Callable[..., Question]:
    """A question from names: ``ask("200m_s95", "mid50x2", grid="raw", heads="free")``."""

    def build(name: str, loop: str, grid: str | None = None, depth: int | None = None, **fields: Any) -> Question:
        entry = expand(name)[0]
        spec = countable(entry)
        return Question(
            baseline=spec,
            layout=parse_layout(loop, depth or spec.num_layers),
            convention=fields.pop("convention", convention("paper")),
            context=fields.pop("context", context_of(spec)),
            grid=find_grid(grid or entry.grid or "bf16"),
            **fields,
        )

    return build


def furnish(folder: Path) -> None:
    """What commands of the README, the guides and the help pages read: a user's configs, pages and tables."""
    for name in ("Mixtral-8x7B-v0.1", "Llama-3.1-8B"):
        (folder / name).mkdir()
        shutil.copy(CONFIGS / f"{name.lower()}.json", folder / name / "config.json")
    (folder / "pages").mkdir()
    for number in range(40):
        (folder / "pages" / f"{number}.txt").write_text(f"This is page {number} of forty.")
    synthetic.write_all(folder)
