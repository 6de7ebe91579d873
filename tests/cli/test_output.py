"""What the program writes: whole outputs, files that are never half written, and terminals that go away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.cli.conftest import Cli, refused, start

SOLVE = ("solve", "--baseline", "200m_s95", "--loop", "mid50x2")
COUNT = ("count", "nano_s85")


@pytest.mark.parametrize(
    "command",
    [
        "solve --baseline 200m_s95 --loop mid50x2",
        "count 200m_s95",
        "count 200m_s95 --convention all",
        "layouts --baseline 200m_s95 --limit 10",
        "specs list 200m*",
        "specs list loopie*",
        "specs show 200m_s95",
        "specs show 200m_s0_smelt",
        "specs show loopie-20b-a2b",
        "count parcae-140m",
        "count mor-360m-expert3",
        "grids",
        "grids bf16",
        "solve --baseline 200m_s95 --loop mid50x2 --no-study --format md",
        "solve --baseline 200m_s95 --loop mid50x2 --no-study --format tex",
        "solve --baseline 200m_s95 --loop mid50x2 --no-study --format csv",
        "solve --baseline 200m_s95 --loop mid50x2 --no-study --front",
    ],
)
def test_the_whole_output_is_as_before(cli: Cli, snapshot: SnapshotAssertion, command: str) -> None:
    ran = cli(*command.split())
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == snapshot


def test_without_an_answer_the_ways_out_are_told(cli: Cli, snapshot: SnapshotAssertion) -> None:
    ran = cli(*SOLVE, "--tolerance", "0.01%", "--no-study")
    assert ran.code == 1
    assert ran.out == snapshot(name="out")
    assert ran.err == snapshot(name="err")


def test_without_a_way_out_that_is_told(cli: Cli) -> None:
    ran = cli("solve", "-b", "nano_s85", "-l", "mid50x2", "--fix", "hidden_size=16777216", "--no-study")
    assert ran.code == 1
    assert "ways out:\n  none found" in ran.err


def test_of_several_baselines_each_without_a_match_is_told(cli: Cli) -> None:
    ran = cli("solve", "-b", "nano", "-l", "mid50x2", "--tolerance", "0.01%", "--no-study")
    assert ran.code == 1
    for name in ("nano_s0", "nano_s85", "nano_s95", "nano_s97"):
        assert f"error: {name}: uniform: the KV floor is +3.13 %" in ran.err


@pytest.mark.parametrize(
    "args",
    [COUNT, ("solve", "-b", "nano_s85", "-l", "none"), ("layouts", "-b", "nano_s85"), ("specs", "list", "nano")],
)
def test_a_file_holds_what_the_terminal_would_show(cli: Cli, here: Path, args: tuple[str, ...]) -> None:
    shown = cli(*args)
    written = cli(*args, "-o", "out.txt")
    assert (written.code, written.out, written.err) == (0, "", "wrote out.txt\n")
    assert Path("out.txt").read_text() == shown.out
    assert [path.name for path in here.iterdir()] == ["out.txt"]


def test_an_existing_file_is_replaced_by_force_alone(cli: Cli) -> None:
    Path("out.txt").write_text("mine")
    for command in (COUNT, SOLVE, ("layouts", "-b", "nano_s85"), ("specs", "list")):
        refused(cli(*command, "-o", "out.txt"), "out.txt: exists already", "add --force to replace it")
        assert Path("out.txt").read_text() == "mine"
    assert cli(*COUNT, "-o", "out.txt", "--force").code == 0
    assert Path("out.txt").read_text() == cli(*COUNT).out


def test_specs_init_replaces_a_file_by_force_alone(cli: Cli) -> None:
    Path("mine.yaml").write_text("mine")
    refused(cli("specs", "init", "mine.yaml"), "mine.yaml: exists already")
    assert Path("mine.yaml").read_text() == "mine"
    assert cli("specs", "init", "mine.yaml", "--force").code == 0
    assert cli("count", "mine.yaml").code == 0


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("missing/out.txt", "missing/out.txt: the folder missing does not exist"),
        (".", ".: is a folder; name a file in it"),
        ("file/out.txt", "file/out.txt: "),
        ("/proc/out.txt", "/proc/out.txt: cannot write there"),
        ("/sys/out.txt", "/sys/out.txt: cannot write there"),
        ("o" * 300, "File name too long"),
        ("\0", "embedded null byte"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, path: str, told: str
) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr("smelt_match.spec.family.expand", no_work)
    Path("file").write_text("mine")
    for args in (COUNT, SOLVE):
        refused(cli(*args, "-o", path), told)
    assert [path.name for path in here.iterdir()] == ["file"]


def test_a_file_made_meanwhile_is_not_replaced(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt_match.errors import BadInput
    from smelt_match.files import write_atomic

    monkeypatch.setattr("smelt_match.files.check_writable", lambda *_: Path("out.txt").write_text("theirs"))
    with pytest.raises(BadInput, match="cannot write there: File exists"):
        write_atomic(Path("out.txt"), "ours")
    assert Path("out.txt").read_text() == "theirs"
    assert [path.name for path in here.iterdir()] == ["out.txt"]


def test_a_written_file_has_the_rights_that_the_umask_leaves(cli: Cli) -> None:
    before = os.umask(0o027)
    try:
        assert cli(*COUNT, "-o", "out.txt").code == 0
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert Path("out.txt").stat().st_mode & 0o777 == 0o640


REWRITE = """
from pathlib import Path
from smelt_match.files import write_atomic
while True:
    for sign in "ab":
        write_atomic(Path("out.txt"), sign * 4_000_000, force=True)
"""


def test_a_killed_run_leaves_the_old_or_the_new_file() -> None:
    """Written over and over, read all the while, and killed at some moment, a file is never anything between."""
    whole = {sign * 4_000_000 for sign in "ab"}
    seen = set()
    for moment in (0.11, 0.23, 0.37, 0.53):
        process = subprocess.Popen([sys.executable, "-c", REWRITE], stderr=subprocess.DEVNULL)
        try:
            while not Path("out.txt").exists():
                time.sleep(0.01)
            end = time.monotonic() + moment
            while time.monotonic() < end:
                seen.add(Path("out.txt").read_text())
        finally:
            process.kill()
            process.wait()
        seen.add(Path("out.txt").read_text())
    assert seen == whole


def test_output_files_are_written_by_the_writer_that_cannot_leave_a_half(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr("smelt_match.files.write_atomic", lambda path, *_: written.append(str(path)))
    for command in (COUNT, SOLVE, ("layouts", "-b", "nano_s85"), ("specs", "list")):
        assert cli(*command, "-o", "out.txt").code == 0
    assert cli("specs", "init", "mine.yaml").code == 0
    assert written == ["out.txt"] * 4 + ["mine.yaml"]


def test_an_interrupted_study_ends_with_130_and_can_be_continued(cli: Cli) -> None:
    args = ("solve", "-b", "nano_s85", "-l", "mid50x2", "--study", "s.journal", "--no-measure")
    process = start(*args, "--trials", "100000")
    deadline = time.monotonic() + 60
    while not Path("s.journal").exists() or Path("s.journal").read_bytes().count(b"\n") < 60:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert cli(*args, "--trials", "3").code == 0


@pytest.mark.parametrize(
    "args", [("specs", "list"), ("--help",), ("solve", "-b", "nano_s85", "-l", "none", "-f", "json")]
)
def test_a_reader_that_goes_away_is_no_failure(args: tuple[str, ...]) -> None:
    process = start(*args)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        process = start(*COUNT, stdout=full)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, "error: standard output: No space left on device\n")


def test_a_closed_output_is_told() -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'smelt_match', *sys.argv[1:]])"
    ran = subprocess.run([sys.executable, "-c", code, *COUNT], stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2,
        "error: the result cannot be shown: standard output is closed",
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_signs_shows_their_escapes(encoding: str) -> None:
    process = start(*COUNT, env={**os.environ, "PYTHONIOENCODING": encoding}, encoding=encoding)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\\u2500" in out


def test_a_bug_is_told_in_a_line_and_shown_on_demand(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("lost")

    monkeypatch.setattr("smelt_match.spec.family.expand", broken)
    refused(cli(*COUNT), "error: LookupError: lost", "--debug", code=70)
    assert "Traceback" in cli("--debug", *COUNT).err
    monkeypatch.undo()
    cli(*COUNT)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize(
    "command",
    [
        "solve --baseline 200m_s95 --loop mid50x2 --no-study",
        "solve --baseline smelt --loop mid50x2 --no-study",
        "count 200m_s95",
        "count 200m_s95 --convention all",
        "layouts --baseline 200m_s95 --limit 10",
        "specs list nano",
        "grids",
    ],
)
def test_tex_compiles_with_booktabs(cli: Cli, command: str) -> None:
    table = cli(*command.split(), "--format", "tex")
    assert table.code == 0
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n\\tiny\n"
    Path("table.tex").write_text(head + table.out + "\\end{document}\n")
    args = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    ran = subprocess.run(args, capture_output=True, text=True, errors="replace", check=False)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert "Missing character" not in ran.stdout
