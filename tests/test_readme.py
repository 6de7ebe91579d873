"""The README shows what the program prints."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran, furnish

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ (.*?)\n(.*?)```", README, flags=re.DOTALL)
BLOCKS = [
    commands
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    if (commands := [line.partition("#")[0].strip() for line in block.splitlines() if line.startswith("smelt-match ")])
]


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_each_output_is_that_of_its_command(cli: Callable[..., Ran], command: str, output: str) -> None:
    ran = cli(*shlex.split(command)[1:])
    assert (ran.code, ran.out) == (0, output)


@pytest.mark.parametrize("commands", BLOCKS, ids=lambda commands: commands[0])
def test_every_command_runs_in_the_order_given(
    cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str]
) -> None:
    """Each block in a folder of its own: none reads what another wrote."""
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path)
    for command in commands:
        ran = cli(*shlex.split(command)[1:])
        assert ran.code == 0, (command, ran.err)


def test_the_reproduced_table_is_what_its_script_prints() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "paper.py"))["table"]()
    assert table.rstrip() in README
    agreed, of = re.search(r"(\d+) of (\d+) printed figures agree", table).groups()  # type: ignore[union-attr]
    assert agreed == of


def test_the_two_commands_are_those_of_the_continuous_checks() -> None:
    assert "pip install . && smelt-match solve --baseline 200m_s95 --loop mid50x2" in README
    assert "pip install '.[test]' && pytest" in README
    assert "pip install '.[test]' && pytest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
