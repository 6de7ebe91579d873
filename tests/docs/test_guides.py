"""Every command of the guides runs, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.scaling import synthetic

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("guide", ["scaling.md"])
def test_every_command_of_a_guide_runs(cli, guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    synthetic.write_all(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / guide).read_text(encoding="utf-8"), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("smelt-match ")]
    assert len(commands) > 10
    for command in commands:
        if command == "smelt-match gain endpoints.csv":
            command += " --draws 50"
        ran = cli(*shlex.split(command)[1:])
        assert ran.code == 0, (command, ran.err)
