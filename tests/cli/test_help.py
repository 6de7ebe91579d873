"""Help: every example runs, every page fits a terminal, and none of it loads a heavy library."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from smelt_match.cli import app
from tests.cli.conftest import Cli
from tests.conftest import furnish

HEAVY = ("torch", "optuna", "scipy", "numpy", "rich", "pandas")


def commands(group: typer.Typer, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """The help epilog of every command, by the words that call it."""
    found = {}
    for command in group.registered_commands:
        assert command.name is not None
        found[(*before, command.name)] = command.epilog or ""
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        assert inner.name is not None
        found |= commands(inner.typer_instance, (*before, inner.name))
    return found


COMMANDS = commands(app)
EXAMPLES: dict[str, list[str]] = {}
"""By the first word of the command, in the order of the pages."""
for words, text in COMMANDS.items():
    EXAMPLES.setdefault(words[0], []).extend(line.strip() for line in text.splitlines() if "smelt-match " in line)


def before(word: str) -> list[str]:
    """Examples of other commands that write a file which an example of this command reads."""
    read = {part for example in EXAMPLES[word] for part in shlex.split(example)[2:]}
    others = (example for other in EXAMPLES if other != word for example in EXAMPLES[other])
    return [example for example in others if (made := re.search(r" -o (\S+)", example)) and made[1] in read]


def test_every_command_shows_an_example_of_itself() -> None:
    assert ("solve",) in COMMANDS
    for words, epilog in COMMANDS.items():
        assert f"  smelt-match {' '.join(words)} " in epilog.replace("\n", " \n"), words


@pytest.mark.parametrize("word", EXAMPLES)
def test_every_example_runs(cli: Cli, word: str) -> None:
    """In the order of the pages, in one folder: some read files that earlier ones, or other commands, write."""
    furnish(Path())
    for example in [*before(word), *EXAMPLES[word]]:
        ran = cli(*shlex.split(example)[1:])
        assert ran.code == 0, (example, ran.err)


@pytest.mark.parametrize("words", [(), ("specs",), *COMMANDS], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    ran = cli(*words, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(" ".join(["Usage: smelt-match", *words]))
    assert max(map(len, ran.out.splitlines())) <= 80
    assert cli(*words, "-h").out == ran.out
    lines = [line.strip() for line in ran.out.splitlines()]
    for example in COMMANDS.get(words, "").split("\n\n"):
        assert example.strip() in lines  # whole, so that it can be copied


def test_help_names_every_command_and_where_to_start(cli: Cli) -> None:
    told = cli("--help").out
    for words in COMMANDS:
        assert re.search(rf"^  {words[0]} ", told, re.MULTILINE)
    assert "smelt-match solve --baseline 200m_s95 --loop mid50x2" in told


def test_the_version_is_told(cli: Cli) -> None:
    from smelt_match import __version__

    assert cli("--version").out == f"smelt-match {__version__}\n"


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        (["--help"], set()),
        (["solve", "--help"], set()),
        (["specs", "list", "--help"], set()),
        (["--version"], set()),
        (["nonsense"], set()),
        (["count", "200m_s95"], {"rich"}),
        (["count", "200m_s95", "--format", "json"], set()),
        (["grids"], {"numpy", "rich"}),
        (["corpus", "build", "--help"], set()),
        (["fit", "--help"], set()),
        (["gain"], {"numpy", "rich", "scipy"}),
        (["plan", "--budget", "1e20"], {"numpy", "rich"}),
        (["export", "nano_s85", "--to", "megatron", "--vocab-size", "64"], set()),
        (["solve", "-b", "nano_s85", "-l", "mid50x2", "--no-study", "--no-measure"], {"numpy", "rich"}),
    ],
)
def test_no_command_loads_a_library_that_it_does_not_use(args: list[str], allowed: set[str]) -> None:
    code = (
        "import sys; from smelt_match.cli import run; run(sys.argv[1:]); "
        f"print('loaded', *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    loaded = ran.stderr.splitlines()[-1].split()[1:]
    assert set(loaded) <= allowed
